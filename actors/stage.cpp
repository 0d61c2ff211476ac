#include "actors/stage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "models/safetensors.h"
#include "models/spec/fingerprint.h"
#include "models/text/clean_caption.h"
#include "models/text/t5_encoder.h"
#include "models/text/unicode.h"

namespace troupe::actors {
namespace {

std::vector<std::string> prepared(const std::vector<std::string>& prompts, bool clean_caption) {
  std::vector<std::string> captions;
  if (clean_caption) {
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

at::ScalarType compute_type(const std::string& name) {
  if (name == "float32") return at::kFloat;
  if (name == "bfloat16") return at::kBFloat16;
  if (name == "float16") return at::kHalf;
  throw std::invalid_argument("[actor] dtype is \"" + name + "\": float32, bfloat16 or float16");
}

Stage::Stage(const wire::LoadStage& load, at::Device device, const Tick& tick)
    : load_(load),
      spec_(spec::read_model_spec(load.model)),
      dtype_(compute_type(load.dtype)),
      device_(device) {
  check_unchanged();
  const models::StagePart part{.blocks = {load.first_block, load.last_block},
                               .embeds = load.embeds,
                               .projects = load.projects,
                               .shard = {load.tp_rank, load.tp_degree}};
  transformer_ = models::load_transformer(spec_, part, dtype_, device_, tick);
  weight_bytes_ = static_cast<std::uint64_t>(transformer_->bytes());
}

void Stage::check_unchanged() const {
  if (load_.fingerprint == 0 || spec::fingerprint(load_.model) == load_.fingerprint) return;
  throw std::runtime_error("[actor] " + load_.model +
                           ": its files have changed since the job was accepted: submit it again");
}

EncodedText Stage::encode_text(const std::vector<std::string>& prompts, int max_length,
                               bool clean_caption, const Tick& tick) const {
  const auto captions = prepared(prompts, clean_caption);
  const auto tokenizer = models::Tokenizer::load(spec_.tokenizer);
  const auto tokens = tokenizer.tokenize(captions, max_length);
  EncodedText text;
  text.cut = tokens.cut;
  // Padding past the longest prompt is masked everywhere, so it is not computed at all.
  const auto longest = *std::max_element(tokens.lengths.begin(), tokens.lengths.end());
  const auto batch = models::text_batch(tokens);
  const auto ids = batch.ids.slice(1, 0, longest);
  const auto mask = batch.mask.slice(1, 0, longest);
  text.lengths = at::tensor(tokens.lengths, at::kLong);
  at::Tensor states;
  check_unchanged();
  {
    const models::T5Encoder encoder(
        spec_.text_encoder, models::WeightStore(spec_.text_encoder_weights), dtype_, device_);
    states = encoder.encode(ids, mask, [&](int, int) { tick(); });
  }
  states = transformer_->project_caption(states);
  text.states = at::constant_pad_nd(states, {0, 0, 0, max_length - longest});
  return text;
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

}  // namespace troupe::actors
