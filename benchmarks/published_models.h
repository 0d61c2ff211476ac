#pragma once
#include <stdexcept>
#include <string>

#include "models/spec/model_spec.h"
#include "tests/spec/published_folder.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/spec/published_qwen_image.h"
#include "tests/spec/published_unets.h"
#include "tests/spec/published_wan.h"

namespace troupe::published {

/// A model as its folder on the hub has it: its configs, and weights of the right names and sizes
/// without bytes. The folder is gone when this returns.
inline spec::ModelSpec model_of(const std::string& name) {
  using namespace troupe::testing;
  const auto read = [](const auto& folder) { return spec::read_model_spec(folder.path()); };
  if (name == "sd3") return read(published_sd3(kSd3MediumConfig));
  if (name == "sd3.5-large") return read(published_sd3(kSd35LargeConfig));
  if (name == "flux") return read(published_flux(kFluxDevConfig));
  if (name == "chroma") return read(published_chroma());
  if (name == "longcat") return read(published_longcat());
  if (name == "ovis") return read(published_ovis());
  if (name == "hunyuan") return read(published_hunyuan(kHunyuanV12Config));
  if (name == "sdxl") return read(PublishedUNetFolder(true));
  if (name == "wan-1.3b") return read(PublishedWanFolder(kWan13bConfig));
  if (name == "wan-14b") return read(PublishedWanFolder(kWan14bConfig));
  if (name == "wan-i2v") return read(published_wan_i2v());
  if (name == "wan2.2-i2v") return read(published_wan_i2v_a14b());
  if (name == "wan2.2-5b") return read(published_wan22());
  if (name == "wan2.2-a14b") return read(published_wan_a14b());
  if (name != "pixart") throw std::invalid_argument("[published] no model " + name);
  return read(PublishedJointFolder(
      kPixArtModelIndex, kPixArtScheduler, {kPixArtXl1024Config, 0, 0, 0},
      {{"text_encoder", "tokenizer", kT5XxlConfig, false, false}}, kSdVaeConfig));
}

/// Guidance scale that the model's publishers recommend.
inline double guidance_of(const std::string& name) {
  if (name == "pixart") return 4.5;
  if (name == "sd3") return 7;
  if (name == "hunyuan") return 6;
  return name == "flux" || name == "sd3.5-large" ? 3.5 : 5;
}

}  // namespace troupe::published
