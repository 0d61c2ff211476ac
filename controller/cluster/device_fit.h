#pragma once
#include <string>

namespace troupe::cluster {

/// An actor on this kind of device can compute with weights of this type; "" is as they are stored.
/// Whether a GPU is new enough for fp8 only its actor can say.
inline bool has_products_of(const std::string& device_kind, const std::string& weight_dtype) {
  if (weight_dtype == "int8") return device_kind == "cpu";
  if (weight_dtype == "fp8") return device_kind == "cuda";
  return true;
}

}  // namespace troupe::cluster
