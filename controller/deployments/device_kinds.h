#pragma once
#include <map>
#include <string>

#include "base/choices.h"
#include "controller/deployments/members.h"

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

// All ranks of a job are on devices of one kind: how many there are in all says nothing where a
// cluster has several.

/// Actors of each kind of device (cpu, cuda) that take jobs or will once they have started, of the
/// kinds that compute with weights of this type ("" = any).
std::map<DeviceKind, int> living_by_kind(const Members& members, WeightChoice weight_dtype);
/// Returns the number of these actors of the kind that has most: no job has more ranks.
int most_alike(const Members& members, WeightChoice weight_dtype);
/// Returns the same number as it would be if no actor were drained.
int most_alike_with_drained(const Members& members, WeightChoice weight_dtype);
/// Returns the kind of device that has most of these actors; `own` where no kind has more than it,
/// and where there are none at all.
DeviceKind commonest_kind(const Members& members, WeightChoice weight_dtype, DeviceKind own);

/// Returns why a job of so many ranks is refused: how many actors there are of each kind, how many
/// others are drained or cannot start, and, where kinds together would do, what helps.
std::string too_few_text(const Members& members, WeightChoice weight_dtype, int world);

}  // namespace troupe::cluster
