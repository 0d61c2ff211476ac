#include "transport/json/request_json.h"

namespace troupe::wire {

nlohmann::json request_json(const ImageRequest& request) {
  return {{"negative_prompt", request.negative_prompt},
          {"height", request.output_height},
          {"width", request.output_width},
          {"resolution_binning", request.resolution_binning},
          {"computed_height", request.height},
          {"computed_width", request.width},
          {"clean_caption", request.clean_caption},
          {"vae_tiling", request.vae_tiling},
          {"steps", request.steps},
          {"guidance_scale", request.guidance_scale},
          {"seed", request.seed},
          {"sampler", request.sampler},
          {"method", request.method},
          {"patches", request.num_pipeline_patch},
          {"warmup_steps", request.warmup_steps},
          {"refill_steps", request.refill_steps},
          {"kv", request.kv},
          {"dtype", request.dtype},
          {"noise_dtype", request.noise_dtype},
          {"max_sequence_length", request.max_sequence_length},
          {"init_latents", request.init_latents_blob != 0}};
}

std::string json_text(const nlohmann::json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::wire
