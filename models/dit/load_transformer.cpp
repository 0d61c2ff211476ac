#include <memory>

#include <ATen/ATen.h>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/pixart.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"

namespace troupe::models {

std::unique_ptr<DiffusionTransformer> load_transformer(const spec::ModelSpec& spec,
                                                       const StagePart& part,
                                                       at::ScalarType compute, at::Device device,
                                                       const std::function<void()>& tick) {
  const WeightStore store(spec.transformer_weights);
  WeightLoader weights;
  weights.get = [&](const std::string& name, at::IntArrayRef shape) {
    if (tick) tick();
    return store.get(name, shape, compute, device);
  };
  weights.release = [&](const std::string& name) { store.release(name); };
  return std::make_unique<PixArt>(spec.transformer, spec.vae.scale_factor(), part, weights, compute,
                                  device);
}

}  // namespace troupe::models
