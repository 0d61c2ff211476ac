#include "actors/stage/stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "models/safetensors.h"
#include "models/spec/fingerprint.h"
#include "models/text/bert_model.h"
#include "models/text/bert_tokenizer.h"
#include "models/text/clean_caption.h"
#include "models/text/clip_text_model.h"
#include "models/text/clip_tokenizer.h"
#include "models/text/mend_prompt.h"
#include "models/text/t5_encoder.h"
#include "models/text/tokenizer.h"
#include "models/text/unicode.h"

namespace troupe::actors {
namespace {

std::vector<std::string> prepared(const spec::ModelSpec& spec,
                                  const std::vector<std::string>& prompts, bool clean_caption) {
  std::vector<std::string> captions;
  if (spec.mends_prompts) {
    for (const auto& prompt : prompts)
      captions.push_back(models::mend_prompt(prompt));
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
      device_(device) {
  check_unchanged();
  std::vector<models::LoraChoice> choices;
  for (const auto& lora : load_.loras)
    choices.push_back({lora.lora.path, lora.lora.scale});
  loras_ = models::LoraWeights(choices, spec_);
  network_ = load_network(spec_, load_, loras_, dtype_, device_, tick);
  weight_bytes_ = static_cast<std::uint64_t>(network_->bytes());
}

void Stage::check_unchanged() const {
  for (const auto& [lora, known] : load_.loras) {
    if (known != 0 && spec::file_fingerprint(lora.path) != known)
      throw std::runtime_error("[actor] " + lora.path +
                               ": it has changed since the job was accepted: submit it again");
  }
  if (load_.fingerprint == 0 || spec::fingerprint(load_.model) == load_.fingerprint) return;
  throw std::runtime_error("[actor] " + load_.model +
                           ": its files have changed since the job was accepted: submit it again");
}

void Stage::note_rehearsed(const std::string& key) {
  constexpr std::size_t kMost = 256;
  if (rehearsed_.size() >= kMost) rehearsed_.clear();
  rehearsed_.insert(key);
}

models::EncoderOutput Stage::encode(const spec::TextEncoderSpec& encoder,
                                    const std::vector<std::string>& prompts, int max_length,
                                    std::vector<std::string>& cut, const Tick& tick) const {
  models::EncoderOutput out;
  out.tokens = encoder.tokens > 0 ? encoder.tokens : max_length;
  if (encoder.absent) return out;
  const auto count = [&](int, int) { tick(); };
  models::WeightStore weights(encoder.weights);
  loras_.adapt(weights, encoder.component);
  models::Tokenized tokens;
  if (const auto* clip = std::get_if<spec::ClipSpec>(&encoder.config)) {
    tokens = models::ClipTokenizer::load(encoder.tokenizer.folder).tokenize(prompts, out.tokens);
    const models::ClipTextModel model(*clip, weights, dtype_, device_);
    const auto states = model.encode(models::text_batch(tokens).ids, 1, count);
    out.states = encoder.use == spec::TextUse::states ? states.last : states.hidden;
    out.pooled = states.pooled;
  } else if (const auto* bert = std::get_if<spec::BertSpec>(&encoder.config)) {
    tokens = models::BertTokenizer::load(encoder.tokenizer.folder).tokenize(prompts, out.tokens);
    const auto batch = models::text_batch(tokens);
    const models::BertModel model(*bert, weights, dtype_, device_);
    out.states = model.encode(batch.ids, batch.mask, count);
  } else {
    tokens = models::Tokenizer::load(encoder.tokenizer).tokenize(prompts, out.tokens);
    const auto batch = models::text_batch(tokens);
    const models::T5Encoder model(std::get<spec::T5Spec>(encoder.config), weights, dtype_, device_);
    if (encoder.use == spec::TextUse::masked_states ||
        encoder.use == spec::TextUse::zeroed_states) {
      // Nobody sees what padding past the longest prompt becomes, so it is not computed at all.
      const auto longest = *std::max_element(tokens.lengths.begin(), tokens.lengths.end());
      out.states =
          model.encode(batch.ids.slice(1, 0, longest), batch.mask.slice(1, 0, longest), count);
    } else {
      const bool masked = encoder.use == spec::TextUse::padded_states;
      out.states = model.encode(batch.ids, masked ? batch.mask : at::Tensor(), count);
    }
  }
  out.lengths = at::tensor(tokens.lengths, at::kLong);
  // What the longest encoder could not take is what was cut.
  cut = tokens.cut;
  return out;
}

EncodedText Stage::encode_text(const std::vector<std::string>& prompts, int max_length,
                               bool clean_caption, const Tick& tick) const {
  const auto captions = prepared(spec_, prompts, clean_caption);
  EncodedText text;
  std::vector<models::EncoderOutput> states;
  check_unchanged();
  for (const auto& encoder : spec_.text_encoders)
    states.push_back(encode(encoder, captions, max_length, text.cut, tick));
  auto projected = project_text(states, max_length);
  projected.cut = std::move(text.cut);
  return projected;
}

EncodedText Stage::project_text(const std::vector<models::EncoderOutput>& outputs,
                                int max_length) const {
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
  if (spec_.makes_videos()) return video_vae().decode(small, 1, tick);
  return vae().decode(small, [&](int, int) { tick(); });
}

}  // namespace troupe::actors
