#include "transport/json/request_json.h"

namespace troupe::wire {

nlohmann::json request_json(const ImageRequest& request, int sampler_steps, int skipped_steps) {
  nlohmann::json loras = nlohmann::json::array();
  for (const auto& lora : request.loras)
    loras.push_back({{"file", lora.path}, {"scale", lora.scale}});
  return {{"negative_prompt", request.negative_prompt},
          {"height", request.output_height},
          {"width", request.output_width},
          {"frames", request.num_frames},
          {"resolution_binning", request.resolution_binning},
          {"computed_height", request.height},
          {"computed_width", request.width},
          {"clean_caption", request.clean_caption},
          {"vae_tiling", request.vae_tiling},
          {"steps", sampler_steps},
          {"model_calls", request.steps},
          {"skipped_steps", skipped_steps},
          {"guidance_scale", request.guidance_scale},
          {"seed", request.seed},
          {"sampler", request.sampler},
          {"method", request.method},
          {"patches", request.num_pipeline_patch},
          {"warmup_steps", request.warmup_steps},
          {"refill_steps", request.refill_steps},
          {"kv", request.kv},
          {"step_cache", request.step_cache},
          {"step_cache_threshold", request.step_cache_threshold},
          {"group_norm", request.group_norm},
          {"exchange", request.exchange},
          {"dtype", request.dtype},
          {"weight_dtype", request.weight_dtype},
          {"noise_dtype", request.noise_dtype},
          {"max_sequence_length", request.max_sequence_length},
          {"init_latents", request.init_latents_blob != 0},
          {"init_image", request.init_image_bytes != 0},
          {"strength", request.strength},
          {"guidance_rescale", request.guidance_rescale},
          {"loras", loras}};
}

std::string json_text(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::wire
