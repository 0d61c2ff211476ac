#include "actors/stage/stage.h"

#include <ATen/ATen.h>

#include <stdexcept>

#include "models/safetensors.h"
#include "models/spec/fingerprint.h"
#include "models/text/clean_caption.h"
#include "models/text/unicode.h"

namespace troupe::actors {
namespace {

constexpr const char* kHasChanged = ": it has changed since the job was accepted: submit it again";

std::vector<std::string> prepared(const spec::ModelSpec& spec,
                                  const std::vector<std::string>& prompts, bool clean_caption) {
  std::vector<std::string> captions;
  if (spec.mends_prompts) {
    for (const auto& prompt : prompts)
      captions.push_back(models::clean_prompt(prompt));
  } else if (!spec.pixart_customs) {
    captions = prompts;
  } else if (clean_caption) {
    const models::CaptionCleaner cleaner;
    for (const auto& prompt : prompts)
      captions.push_back(cleaner.clean(prompt));
  } else {
    for (const auto& prompt : prompts)
      captions.push_back(models::normal_caption(prompt));
  }
  return captions;
}

}  // namespace

at::ScalarType scalar_type(ComputeType type) {
  switch (type) {
    case ComputeType::bfloat16:
      return at::kBFloat16;
    case ComputeType::float16:
      return at::kHalf;
    default:
      return at::kFloat;
  }
}

Stage::Stage(const wire::LoadStage& load, at::Device device, const Tick& tick)
    : load_(load),
      spec_(spec::read_model_spec(load.model)),
      dtype_(scalar_type(load.dtype)),
      device_(device),
      prompt_cache_(load.prompt_cache_bytes) {
  check_unchanged();
  for (const auto& net : load_.controlnets)
    spec::add_controlnet(spec_, net.folder);
  std::vector<models::LoraChoice> choices;
  for (const auto& lora : load_.loras)
    choices.push_back({lora.lora.path, lora.lora.scale, lora.lora.of_second});
  loras_ = models::LoraWeights(choices, spec_);
  network_ = load_network(spec_, load_, loras_, dtype_, device_, tick);
  check_whole();
  weight_bytes_ = static_cast<std::uint64_t>(network_->bytes());
}

void Stage::check_unchanged() const {
  for (const auto& [lora, known] : load_.loras) {
    if (known != 0 && spec::lora_fingerprint(lora.path) != known)
      throw std::runtime_error("[actor] " + lora.path + kHasChanged);
  }
  for (const auto& [folder, known] : load_.controlnets) {
    if (known != 0 && spec::fingerprint(folder) != known)
      throw std::runtime_error("[actor] " + folder + kHasChanged);
  }
  if (load_.fingerprint == 0 || spec::fingerprint(load_.model) == load_.fingerprint) return;
  throw std::runtime_error("[actor] " + load_.model +
                           ": its files have changed since the job was accepted: submit it again");
}

void Stage::check_streamed() const {
  const bool streams = load_.offload == OffloadChoice::blocks && device_.is_cpu();
  const bool changes = spec_.second_transformer && !load_.keeps_both;
  if (streams || changes) check_unchanged();
}

void Stage::note_rehearsed(const std::string& key) {
  constexpr std::size_t kMost = 256;
  if (rehearsed_.size() >= kMost) rehearsed_.clear();
  rehearsed_.insert(key);
}

void Stage::keep_encoders(bool keep) {
  keeps_encoders_ = keep;
  if (keep) return;
  encoders_.clear();
  vision_.reset();
}

std::uint64_t Stage::encoder_bytes() const {
  std::uint64_t bytes = vision_ ? vision_->bytes() : 0;
  for (const auto& [index, encoder] : encoders_)
    bytes += encoder->bytes();
  return bytes;
}

std::vector<EncodedPrompt> Stage::encode(std::size_t encoder,
                                         const std::vector<std::string>& captions,
                                         std::int64_t most, const Tick& tick,
                                         const LearnedWords& learned,
                                         const SeenPictures& pictures) {
  check_unchanged();
  const auto& spec = spec_.text_encoders.at(encoder);
  if (!keeps_encoders_)
    return TextEncoder(spec, loras_, dtype_, device_)
        .encode(captions, most, tick, learned, pictures);
  auto& kept = encoders_[encoder];
  if (!kept) {
    kept = std::make_unique<TextEncoder>(spec, loras_, dtype_, device_);
    kept->let_stay();
  }
  return kept->encode(captions, most, tick, learned, pictures);
}

std::vector<models::TextualInversion> Stage::read_embeddings(
    const std::vector<wire::Embedding>& embeddings) const {
  std::vector<models::TextualInversion> all;
  for (const auto& [path, token, fingerprint] : embeddings) {
    all.push_back(models::read_textual_inversion({path, token}, spec_));
    if (all.back().fingerprint != fingerprint)
      throw std::runtime_error("[actor] " + path + kHasChanged);
  }
  return all;
}

models::EncoderOutput Stage::encode_text(std::size_t encoder,
                                         const std::vector<std::string>& prompts,
                                         std::int64_t max_length, bool clean_caption,
                                         std::vector<std::string>& cut, const Tick& tick,
                                         const std::vector<models::TextualInversion>& learned,
                                         const SeenPictures& pictures) {
  const auto& spec = spec_.text_encoders.at(encoder);
  if (spec.absent) return empty_output(encoder, std::ssize(prompts), max_length);
  const auto most = spec.tokens > 0 ? spec.tokens : max_length;
  const auto captions = prepared(spec_, prompts, clean_caption);
  std::vector<EncodedPrompt> found(captions.size());
  std::vector<std::string> missing;
  std::vector<std::size_t> places;
  std::string words;
  for (const auto& inversion : learned)
    words += inversion.token + ' ' + std::to_string(inversion.fingerprint) + '\n';
  for (std::size_t i = 0; i < captions.size(); ++i) {
    if (const auto* kept =
            prompt_cache_.find({encoder, most, captions[i], words, pictures.fingerprint})) {
      found[i] = *kept;
    } else {
      missing.push_back(captions[i]);
      places.push_back(i);
    }
  }
  if (!missing.empty()) {
    const auto made =
        encode(encoder, missing, most, tick, LearnedWords(learned, encoder), pictures);
    for (std::size_t i = 0; i < made.size(); ++i) {
      found[places[i]] = made[i];
      prompt_cache_.keep({encoder, most, missing[i], words, pictures.fingerprint}, made[i]);
    }
  }
  prompt_use_.encoded += missing.size();
  prompt_use_.from_cache += captions.size() - missing.size();
  cut.clear();
  for (const auto& prompt : found)
    cut.push_back(prompt.cut);
  auto out = empty_output(encoder, std::ssize(found), max_length);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const auto& [states, pooled, length, unused] = found[i];
    if (states.defined()) out.states[row].narrow(0, 0, states.size(0)).copy_(states);
    if (pooled.defined()) out.pooled[row].copy_(pooled);
    out.lengths[row] = length;
  }
  return out;
}

models::EncoderOutput Stage::empty_output(std::size_t encoder, std::int64_t prompts,
                                          std::int64_t max_length) const {
  const auto& spec = spec_.text_encoders.at(encoder);
  const auto shape = spec::output_shape(spec, max_length);
  const auto options = at::TensorOptions().dtype(dtype_).device(device_);
  models::EncoderOutput out;
  out.tokens = spec.tokens > 0 ? spec.tokens : max_length;
  if (spec.absent) return out;
  if (shape.width > 0) out.states = at::zeros({prompts, shape.tokens, shape.width}, options);
  if (shape.pooled > 0) out.pooled = at::zeros({prompts, shape.pooled}, options);
  out.lengths = at::zeros({prompts}, at::kLong);
  return out;
}

models::EncoderOutput Stage::without_padding(std::size_t encoder,
                                             models::EncoderOutput output) const {
  if (!output.states.defined() || !cuts_padding(spec_.text_encoders.at(encoder).use)) return output;
  output.states = output.states.slice(1, 0, output.lengths.max().item<std::int64_t>());
  return output;
}

EncodedText Stage::project_text(const std::vector<models::EncoderOutput>& outputs,
                                std::int64_t max_length) const {
  EncodedText text;
  text.caption = network_->project_caption(outputs);
  auto& projected = text.caption.states;
  const auto all = spec_.transformer.caption_tokens(max_length);
  text.lengths = spec_.transformer.pads_text ? at::full({projected.size(0)}, all, at::kLong)
                                             : outputs.front().lengths;
  projected = at::constant_pad_nd(projected, {0, 0, 0, all - projected.size(1)});
  return text;
}

models::AutoencoderKL Stage::picture_encoder() const {
  check_unchanged();
  const models::WeightStore weights(spec_.vae_weights);
  return {spec_.vae,
          weights,
          models::AutoencoderKL::decode_dtype(spec_.vae, dtype_),
          device_,
          {spec::VaeHalf::encoder}};
}

std::function<at::Tensor(const at::Tensor& pixels)> Stage::edited_encoder(bool tiled,
                                                                          Tick tick) const {
  if (spec_.video_vae) {
    const auto vae = std::make_shared<models::AutoencoderKLWan>(frame_encoder());
    return [vae, tick](const at::Tensor& pixels) {
      return vae->encode(
          1, [&pixels](std::int64_t) { return pixels; }, tick);
    };
  }
  const auto vae = std::make_shared<models::AutoencoderKL>(picture_encoder());
  return [vae, tiled, tick](const at::Tensor& pixels) {
    const auto each = [&tick](int, int) { tick(); };
    const auto found = tiled ? vae->encode_tiled(pixels, each) : vae->encode(pixels, each);
    return vae->scaled(found.mode()).to(at::kFloat).contiguous();
  };
}

at::Tensor Stage::see(const at::Tensor& picture, const std::string& name, const Tick& tick) {
  const auto& vision = spec_.vision.value();
  // Text encoders have the keys before it.
  const PromptCache::Key key{spec_.text_encoders.size(), vision.config.tokens(), name};
  if (const auto* kept = prompt_cache_.find(key)) return kept->states.unsqueeze(0).to(device_);
  check_unchanged();
  const auto make = [&] {
    return std::make_unique<models::ClipVisionModel>(
        vision.config, models::WeightStore(vision.weights), dtype_, device_);
  };
  std::unique_ptr<models::ClipVisionModel> own;
  if (!keeps_encoders_) own = make();
  if (keeps_encoders_ && !vision_) {
    vision_ = make();
    vision_->let_stay();
  }
  const auto states =
      (own ? own : vision_)->encode(models::clip_pixels(picture, vision.pictures), tick);
  prompt_cache_.keep(key, {states[0].cpu(), {}, vision.config.tokens(), ""});
  return states;
}

models::AutoencoderKLWan Stage::frame_encoder() const {
  check_unchanged();
  const models::WeightStore weights(spec_.vae_weights);
  return {spec_.video_vae.value(), weights, device_, spec::VaeHalf::encoder};
}

const models::AutoencoderKL& Stage::vae() {
  if (!vae_) {
    check_unchanged();
    models::WeightStore weights(spec_.vae_weights);
    vae_ = std::make_unique<models::AutoencoderKL>(
        spec_.vae, weights, models::AutoencoderKL::decode_dtype(spec_.vae, dtype_), device_);
  }
  return *vae_;
}

const models::AutoencoderKLWan& Stage::video_vae() {
  if (!video_vae_) {
    check_unchanged();
    const models::WeightStore weights(spec_.vae_weights);
    video_vae_ =
        std::make_unique<models::AutoencoderKLWan>(spec_.video_vae.value(), weights, device_);
  }
  return *video_vae_;
}

at::Tensor Stage::rough_picture(const at::Tensor& latents, int num_frames, const Tick& tick) {
  const auto rows = latents.size(2) / spec_.latent_frames(num_frames);
  const auto first = latents.slice(0, 0, 1).slice(2, 0, rows);
  const auto small = at::avg_pool2d(first, {4, 4}, {4, 4}, {0, 0}, /*ceil_mode=*/true,
                                    /*count_include_pad=*/false);
  if (spec_.video_vae) return video_vae().decode(small, 1, tick);
  return vae().decode(small, [&](int, int) { tick(); });
}

}  // namespace troupe::actors
