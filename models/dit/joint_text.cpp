#include "models/dit/joint_text.h"

#include <vector>

#include <ATen/ATen.h>

#include "models/dit/stage_checks.h"

namespace troupe::models {

std::unique_ptr<CaptionCache> JointCaption::items(int64_t begin, int64_t end) const {
  const auto own = [&](const at::Tensor& of) {
    return of.defined() ? of.slice(0, begin, end) : at::Tensor();
  };
  return std::make_unique<JointCaption>(end - begin, own(states_), own(pooled_));
}

at::Tensor JointCaption::tokens(int64_t begin, int64_t end) const {
  return states_.slice(1, begin, end).clone(at::MemoryFormat::Contiguous);
}

int64_t JointCaption::bytes() const {
  const auto of = [](const at::Tensor& t) { return t.defined() ? t.nbytes() : 0; };
  return static_cast<int64_t>(of(states_) + of(pooled_));
}

std::unique_ptr<CaptionCache> joint_caption(const char* family, const Caption& caption,
                                            const at::Tensor& mask, bool embeds, int64_t width,
                                            int64_t pooled_width) {
  const auto& states = caption.states;
  if (states.dim() != 3 || states.size(1) == 0 || states.size(2) != width) {
    refuse_shape(family, "the projected caption", states, {-1, -1, width});
  }
  if (pooled_width == 0 ? caption.pooled.defined()
                        : !caption.pooled.defined() || caption.pooled.dim() != 2 ||
                              caption.pooled.size(0) != states.size(0) ||
                              caption.pooled.size(1) != pooled_width) {
    refuse_shape(family, "the pooled caption", caption.pooled, {states.size(0), pooled_width});
  }
  if (mask.sizes() != states.sizes().slice(0, 2)) {
    refuse_shape(family, "the caption's mask", mask, states.sizes().slice(0, 2));
  }
  return std::make_unique<JointCaption>(states.size(0), embeds ? states : at::Tensor(),
                                        caption.pooled);
}

TimeTextEmbedding::TimeTextEmbedding(const WeightLoader& weights, int64_t pooled_width,
                                     int64_t width, bool guidance)
    : takes_guidance_(guidance),
      timestep_(weights, "time_text_embed.timestep_embedder", kSineFeatures, width, width),
      text_(weights, "time_text_embed.text_embedder", pooled_width, width, width) {
  if (guidance) {
    guidance_ = SiluMlp(weights, "time_text_embed.guidance_embedder", kSineFeatures, width, width);
  }
}

at::Tensor TimeTextEmbedding::operator()(double timestep, double guidance,
                                         const at::Tensor& pooled) const {
  const auto features = [&](double value) {
    return sine_features(at::tensor({value}).to(at::kFloat))
        .to(pooled.device(), pooled.scalar_type());
  };
  at::Tensor embedded = timestep_(features(timestep));
  if (takes_guidance_) embedded = embedded + guidance_(features(guidance));
  return embedded + text_(pooled);
}

TwoStreams::TwoStreams(const at::Tensor& hidden, int64_t texts)
    : text(hidden.slice(1, 0, texts).contiguous()), picture(hidden.slice(1, texts).contiguous()) {}

at::Tensor TwoStreams::joined() const {
  return text.size(1) == 0 ? picture : at::cat({text, picture}, 1);
}

}  // namespace troupe::models
