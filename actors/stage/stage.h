#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/stage/network.h"
#include "actors/stage/text_encoder.h"
#include "models/encoders/clip_vision_model.h"
#include "models/spec/model_spec.h"
#include "models/vae/autoencoder_kl.h"
#include "models/vae/autoencoder_kl_wan.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// Text of a batch as it crosses to all actors: states in the compute type, lengths [B] int64 on
/// the CPU.
struct EncodedText {
  models::Caption caption;
  at::Tensor lengths;
};

/// State that this actor keeps of one deployment: its blocks' weights, and access to the text
/// encoder and the decoder, which are read when a task asks for them.
class Stage {
 public:
  using Tick = std::function<void()>;

  /// Reads the stage's own weights; `tick` is called before each tensor, and an exception that it
  /// throws ends the loading. Throws std::runtime_error naming file and tensor, or the folder if it
  /// has changed since the job was planned.
  Stage(const wire::LoadStage& load, at::Device device, const Tick& tick = {});

  const spec::ModelSpec& spec() const { return spec_; }
  const Network& network() const { return *network_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }
  int blocks() const { return load_.last_block - load_.first_block; }
  const wire::LoadStage& load() const { return load_; }
  std::uint64_t weight_bytes() const { return weight_bytes_; }

  /// Throws as the constructor if the folder's files have changed since the job was planned. Called
  /// after a micro-step whose blocks were read from files (offload on a CPU), or a transformer in
  /// the place of another.
  void check_streamed() const;

  /// Throws if a file of the folder is shorter than when it was mapped. Called after anything that
  /// reads weights.
  void check_whole() const { models::require_whole_files(mapped_before_, spec_.folder); }

  /// Returns whether jobs of that key (rehearsal.h) have been rehearsed here.
  bool rehearsed(const std::string& key) const { return rehearsed_.contains(key); }
  void note_rehearsed(const std::string& key);
  /// Forgets all rehearsals, because what they left behind is gone.
  void forget_rehearsed() { rehearsed_.clear(); }

  /// Sets whether text encoders that have been used stay in memory; if not, they leave it at once.
  void keep_encoders(bool keep);
  /// Returns the bytes of text encoders' weights that are in memory.
  std::uint64_t encoder_bytes() const;
  /// Tokenizes and encodes with one of the folder's text encoders, whose weights are gone from
  /// memory when it returns unless they are to stay; what it has encoded before it may know still.
  /// Of each prompt the same bits, whatever the others are. States are padded with zeros to the
  /// encoder's tokens; `cut`: what of each prompt did not fit. With PixArt's customs prompts are
  /// stripped and in lower case first, or with `clean_caption` cleaned as models::CaptionCleaner
  /// does; with Wan's they are mended. `learned`: words that its prompts may have beside the
  /// vocabulary's. `pictures`: what an encoder with a vision tower sees beside each prompt. An
  /// absent encoder gives nothing.
  models::EncoderOutput encode_text(std::size_t encoder, const std::vector<std::string>& prompts,
                                    std::int64_t max_length, bool clean_caption,
                                    std::vector<std::string>& cut, const Tick& tick,
                                    const std::vector<models::TextualInversion>& learned = {},
                                    const SeenPictures& pictures = {});
  /// Returns zeros of the shape that `encode_text` gives, to receive its output from another actor.
  models::EncoderOutput empty_output(std::size_t encoder, std::int64_t prompts,
                                     std::int64_t max_length) const;
  /// Projects all outputs of `encode_text`, in the encoders' order. States are padded to the
  /// caption's tokens.
  EncodedText project_text(const std::vector<models::EncoderOutput>& outputs,
                           std::int64_t max_length) const;
  /// Cuts an output of `encode_text`, or one that was received, to the length of its longest prompt
  /// if padding is of no use.
  models::EncoderOutput without_padding(std::size_t encoder, models::EncoderOutput output) const;
  /// Reads the words that a request brings along. Throws std::runtime_error where a file is not as
  /// it was when the job was accepted.
  std::vector<models::TextualInversion> read_embeddings(
      const std::vector<wire::Embedding>& embeddings) const;
  /// Counted by text encoder and prompt, since the deployment was loaded.
  struct PromptUse {
    std::uint64_t encoded = 0;
    std::uint64_t from_cache = 0;
  };
  const PromptUse& prompt_use() const { return prompt_use_; }
  /// Returns the encoder of a picture to begin with, read anew: its weights are freed with it.
  models::AutoencoderKL picture_encoder() const;
  /// Returns what makes latents [1, C, h, w], float32, as a sampler takes them, of pictures to
  /// edit, float32 [1, 3, H, W] in [-1, 1]: the mean of the encoder's distribution. The encoder is
  /// read anew, as that of `picture_encoder`.
  std::function<at::Tensor(const at::Tensor& pixels)> edited_encoder(bool tiled, Tick tick) const;
  /// Returns the vision tower's states [1, T, d] of a picture, uint8 [H, W, 3], whose weights are
  /// gone when it returns unless text encoders stay. `name` tells its file apart: what it has seen
  /// before it may know still.
  at::Tensor see(const at::Tensor& picture, const std::string& name, const Tick& tick);
  /// Returns the encoder of the frames that a video is given, likewise.
  models::AutoencoderKLWan frame_encoder() const;
  /// Returns the VAE, which is loaded when it is first asked for, and stays.
  const models::AutoencoderKL& vae();
  /// Returns the VAE of a model of videos.
  const models::AutoencoderKLWan& video_vae();
  /// Returns a rough version of the first picture of latents [n, C, h, w], or of its first frame,
  /// shrunk four-fold before the decoder, which costs a sixteenth:
  /// [1, 3, about H / 4, about W / 4].
  at::Tensor rough_picture(const at::Tensor& latents, int num_frames, const Tick& tick);

 private:
  std::vector<EncodedPrompt> encode(std::size_t encoder, const std::vector<std::string>& captions,
                                    std::int64_t most, const Tick& tick,
                                    const LearnedWords& learned, const SeenPictures& pictures);
  /// Text encoders, decoder and LoRAs must be those of when the job was planned.
  void check_unchanged() const;

  wire::LoadStage load_;
  std::uint64_t mapped_before_ = models::mappings_made();
  spec::ModelSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  models::LoraWeights loras_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<models::AutoencoderKL> vae_;
  std::unique_ptr<models::AutoencoderKLWan> video_vae_;
  std::uint64_t weight_bytes_ = 0;
  bool keeps_encoders_ = false;
  std::map<std::size_t, std::unique_ptr<TextEncoder>> encoders_;  // that stay
  std::unique_ptr<models::ClipVisionModel> vision_;               // that stays
  PromptCache prompt_cache_;
  PromptUse prompt_use_;
  std::set<std::string> rehearsed_;
};

at::ScalarType scalar_type(ComputeType type);

}  // namespace troupe::actors
