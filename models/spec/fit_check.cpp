#include "models/spec/fit_check.h"

#include <stdexcept>

namespace troupe::spec {

void check_fit(const ModelSpec& spec) {
  const auto require = [&](const char* what, std::int64_t wanted, const std::string& of,
                           std::int64_t has) {
    if (wanted == has) return;
    throw std::runtime_error("[read_model] " + spec.folder.string() + ": " +
                             std::string(spec.transformer.unet() ? "unet " : "transformer ") +
                             what + " = " + std::to_string(wanted) + " does not fit " + of + " = " +
                             std::to_string(has));
  };
  if (const auto* family = std::get_if<PixArtSpec>(&spec.transformer.family)) {
    require("caption_channels", family->caption_channels, "text_encoder d_model",
            std::get<T5Spec>(spec.text_encoders[0].config).d_model);
  }
  if (const auto* family = std::get_if<HunyuanSpec>(&spec.transformer.family)) {
    require("text_len", family->text_len, "the pipeline's tokens of BERT", kClipTokens);
    require("cross_attention_dim", family->cross_attention_dim, "text_encoder hidden_size",
            std::get<BertSpec>(spec.text_encoders[0].config).hidden_size);
    require("cross_attention_dim_t5", family->cross_attention_dim_t5, "text_encoder_2 d_model",
            std::get<T5Spec>(spec.text_encoders[1].config).d_model);
  }
  if (const auto* family = std::get_if<FluxSpec>(&spec.transformer.family)) {
    require("pooled_projection_dim", family->pooled_projection_dim, "text_encoder's vector",
            std::get<ClipSpec>(spec.text_encoders[0].config).pooled_size());
    require("joint_attention_dim", family->joint_attention_dim, "text_encoder_2 d_model",
            std::get<T5Spec>(spec.text_encoders[1].config).d_model);
  }
  if (const auto* family = std::get_if<Sd3Spec>(&spec.transformer.family)) {
    std::int64_t pooled = 0;
    for (const int encoder : {0, 1})
      pooled += std::get<ClipSpec>(spec.text_encoders[encoder].config).pooled_size();
    require("pooled_projection_dim", family->pooled_projection_dim, "both CLIP's vectors", pooled);
    if (!spec.text_encoders[2].absent) {
      require("joint_attention_dim", family->joint_attention_dim, "text_encoder_3 d_model",
              std::get<T5Spec>(spec.text_encoders[2].config).d_model);
    }
  }
  if (const auto* family = std::get_if<WanSpec>(&spec.transformer.family)) {
    require("text_dim", family->text_dim, "text_encoder d_model",
            std::get<T5Spec>(spec.text_encoders[0].config).d_model);
  }
  if (const auto* family = spec.transformer.unet()) {
    std::int64_t width = 0;
    for (const TextEncoderSpec& encoder : spec.text_encoders)
      width += std::get<ClipSpec>(encoder.config).hidden_size;
    require("cross_attention_dim", family->cross_attention_dim, "the text encoders' hidden_size",
            width);
    require("out_channels", family->out_channels, "its own in_channels", family->in_channels);
    const auto& pooled = std::get<ClipSpec>(spec.text_encoders.back().config);
    const bool added = spec.text_encoders.size() == 2;
    require(
        "projection_class_embeddings_input_dim", family->projection_class_embeddings_input_dim,
        "the pooled text and six sizes",
        added ? pooled.pooled_size() + UNetSpec::kTimeIds * family->addition_time_embed_dim : 0);
  }
  require("in_channels", spec.transformer.in_channels, "vae latent_channels",
          spec.vae.latent_channels);
}

}  // namespace troupe::spec
