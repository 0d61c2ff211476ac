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

/// Why `where`, whose devices cannot, is refused for weights of this type.
inline std::string no_products_text(const std::string& weight_dtype, const std::string& where) {
  if (weight_dtype == "int8")
    return "[weights] int8 is for actors on the CPU, and " + where +
           " has none: fp8 is what GPUs have";
  return "[weights] fp8 needs a GPU of compute capability 8.9, and " + where +
         " has none: int8 is what CPUs have";
}

}  // namespace troupe::cluster
