#pragma once
#include <map>
#include <string>

#include "controller/deployments/members.h"

namespace troupe::cluster {

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
