#pragma once
#include <string>

#include "base/choices.h"

namespace troupe::cluster {

/// True when an actor on this kind of device can compute with weights kept like this. Whether a GPU
/// is new enough for fp8 only its actor can say.
inline bool has_products_of(DeviceKind device_kind, WeightChoice weight_dtype) {
  if (weight_dtype == WeightChoice::int8) return device_kind == DeviceKind::cpu;
  if (weight_dtype == WeightChoice::fp8) return device_kind == DeviceKind::cuda;
  return true;
}

/// Returns why weights of this type are refused by `where`, whose devices cannot compute with them.
inline std::string no_products_text(WeightChoice weight_dtype, const std::string& where) {
  if (weight_dtype == WeightChoice::int8)
    return "[weights] int8 is for actors on the CPU, and " + where +
           " has none: fp8 is what GPUs have";
  return "[weights] fp8 needs a GPU of compute capability 8.9, and " + where +
         " has none: int8 is what CPUs have";
}

}  // namespace troupe::cluster
