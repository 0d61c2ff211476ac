#pragma once
#include <map>
#include <memory>
#include <string>

#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/unet/patch_port.h"
#include "tests/models/unet_support.h"

namespace troupe::models::testing {

inline constexpr int kSteps = 6;

inline const std::map<std::string, unet::NormMode> kNormModes = {
    {"corrected", unet::NormMode::corrected},
    {"stale", unet::NormMode::stale},
    {"synchronous", unet::NormMode::synchronous},
    {"separate", unet::NormMode::separate}};

inline std::unique_ptr<Sampler> ddim(const nlohmann::json& beta) {
  nlohmann::json config = beta;
  config["clip_sample"] = false;
  return make_sampler({"DDIMScheduler", config.dump(), "scheduler_config.json"}, "", kSteps);
}

/// A case of the fixture unet_distrifusion.
struct UNetRun {
  UNetRun(const UNetBook& book, const nlohmann::json& item)
      : name(item["name"]),
        model(load_unet(item["model"])),
        in(book, name),
        sampler(ddim(book.content["beta"])),
        patches(item["patches"]),
        warmup(item["warmup"]),
        cuts(in.latents.size(2), patches, model.levels()) {}

  /// Final latents of the exchange's patches. Each patch is stepped by itself.
  at::Tensor run(unet::PatchExchange& exchange, unet::NormMode norm, unet::StepMode mode,
                 int synchronous) const {
    unet::PatchPort port(cuts, exchange, norm);
    auto latents = cut(in.latents, cuts, exchange.begin(), exchange.end());
    const auto text = model.keys_of(in.states);
    for (int i = 0; i < kSteps; ++i) {
      port.begin_step(i < synchronous ? unet::StepMode::synchronous : mode);
      const auto condition = model.condition(sampler->timestep(i), in.latents.size(0), in.added);
      const auto outputs = model(latents, condition, text, port);
      SamplerState state;
      for (size_t p = 0; p < latents.size(); ++p)
        latents[p] = sampler->step(state, i, outputs[p], latents[p]);
    }
    exchange.finish();
    return at::cat(latents, 2);
  }

  std::string name;
  unet::UNet2DConditionModel model;
  UNetInputs in;
  std::unique_ptr<Sampler> sampler;
  int patches, warmup;
  unet::PatchCuts cuts;
};

}  // namespace troupe::models::testing
