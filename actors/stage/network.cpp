#include "actors/stage/network.h"

#include "actors/stage/dit_network.h"
#include "actors/stage/unet_network.h"

namespace troupe::actors {

kernels::WeightType weight_type(WeightChoice choice) {
  switch (choice) {
    case WeightChoice::int8:
      return kernels::WeightType::int8;
    case WeightChoice::fp8:
      return kernels::WeightType::fp8;
    default:
      return kernels::WeightType::as_computed;
  }
}

std::unique_ptr<Network> load_network(const spec::ModelSpec& spec, const wire::LoadStage& load,
                                      const models::LoraWeights& loras, at::ScalarType dtype,
                                      at::Device device, const std::function<void()>& tick) {
  if (spec.transformer.unet())
    return std::make_unique<UNetNetwork>(spec, load, loras, dtype, device, tick);
  return std::make_unique<DitNetwork>(spec, load, loras, dtype, device, tick);
}

}  // namespace troupe::actors
