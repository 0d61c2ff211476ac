#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "models/encoders/bert_model.h"
#include "models/encoders/clip_text_model.h"
#include "models/encoders/qwen_text_model.h"
#include "models/encoders/t5_encoder.h"
#include "models/lora/lora_weights.h"
#include "models/spec/model_spec.h"
#include "models/text/textual_inversion.h"
#include "models/text/tokenizers.h"

namespace troupe::actors {

/// Output of a text encoder for one text.
struct EncodedPrompt {
  at::Tensor states;        // [tokens, d]; without padding that nobody sees; or undefined
  at::Tensor pooled;        // [p], or undefined
  std::int64_t length = 0;  // tokens that are no padding
  std::string cut;          // what did not fit

  std::uint64_t bytes() const;
};

/// Outputs of text encoders for texts, in host memory; the least recently used goes first. The
/// cache belongs to one deployment, whose weights, LoRAs and type are the same as long as it lives,
/// so that an encoder, a text and the number of its tokens determine the output.
class PromptCache {
 public:
  struct Key {
    std::size_t encoder = 0;
    std::int64_t tokens = 0;    // that the text is padded or cut to
    std::string text;           // as it is tokenized
    std::string learned = {};   // which words of textual inversions there are beside the vocabulary
    std::string pictures = {};  // which pictures the text has beside it

    auto operator<=>(const Key&) const = default;
  };

  /// Makes a cache of at most `most_bytes` bytes.
  explicit PromptCache(std::uint64_t most_bytes) : most_bytes_(most_bytes) {}

  /// Returns the output, valid until the next `keep`; null if it is not in the cache.
  const EncodedPrompt* find(const Key& key);
  /// Copies the output into the cache, unless it is larger than the whole cache.
  void keep(const Key& key, const EncodedPrompt& prompt);

  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    EncodedPrompt prompt;
    std::uint64_t bytes = 0;
    std::list<Key>::iterator use;
  };
  void drop(std::map<Key, Entry>::iterator entry);

  std::uint64_t most_bytes_;
  std::uint64_t bytes_ = 0;
  std::list<Key> uses_;  // the last one first
  std::map<Key, Entry> entries_;
};

/// Pictures that a text encoder with a vision tower sees beside each text.
struct SeenPictures {
  std::vector<at::Tensor> rgb;  // uint8 [H, W, 3] on the CPU, as the pipeline shows them
  std::string fingerprint;      // of the files that they are read from
};

/// Words of textual inversions that one text encoder has for a job: of CLIP's alone.
struct LearnedWords {
  std::vector<std::string> tokens;
  at::Tensor rows;  // [tokens, D] float32 on the CPU; undefined = none

  LearnedWords() = default;
  LearnedWords(const std::vector<models::TextualInversion>& from, std::size_t encoder);
};

/// One of a folder's text encoders with its tokenizer. It reads its weights while it encodes, a
/// block at a time, or keeps what it has read once.
class TextEncoder {
 public:
  using Tick = std::function<void()>;

  /// Throws std::runtime_error naming file and tensor, or file and cause.
  TextEncoder(const spec::TextEncoderSpec& spec, const models::LoraWeights& loras,
              at::ScalarType dtype, at::Device device);

  /// Makes the weights that are read from now on stay in memory.
  void let_stay();
  /// Returns the bytes of the weights in memory.
  std::uint64_t bytes() const;
  /// Encodes each text by itself, padded or cut to `most` tokens, so that its output does not
  /// depend on the other texts.
  std::vector<EncodedPrompt> encode(const std::vector<std::string>& captions, std::int64_t most,
                                    const Tick& tick, const LearnedWords& learned = {},
                                    const SeenPictures& pictures = {}) const;

 private:
  using Model = std::variant<models::T5Encoder, models::ClipTextModel, models::BertModel,
                             models::QwenTextModel>;

  spec::TextEncoderSpec spec_;
  models::AnyTokenizer tokenizer_;
  Model model_;
};

/// Padding is masked out in the encoder and of no use behind it.
bool cuts_padding(spec::TextUse use);

}  // namespace troupe::actors
