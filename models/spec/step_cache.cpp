#include "models/spec/step_cache.h"

namespace troupe::spec {

double default_cache_threshold(StepCacheRule rule) {
  return rule == StepCacheRule::teacache ? 0.25 : 0.05;
}

std::vector<double> teacache_polynomial(const TransformerSpec& transformer) {
  if (std::holds_alternative<FluxSpec>(transformer.family))
    return {4.98651651e+02, -2.83781631e+02, 5.58554382e+01, -3.82021401e+00, 2.64230861e-01};
  if (std::holds_alternative<WanSpec>(transformer.family)) {
    constexpr std::int64_t kWidth1B = 1536;
    constexpr std::int64_t kWidth14B = 5120;
    if (transformer.inner_dim() == kWidth1B)
      return {2.39676752e+03, -1.31110545e+03, 2.01331979e+02, -8.29855975e+00, 1.37887774e-01};
    if (transformer.inner_dim() == kWidth14B)
      return {-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429, -13.02252404};
  }
  return {1, 0};
}

}  // namespace troupe::spec
