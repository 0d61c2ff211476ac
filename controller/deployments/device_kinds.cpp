#include "controller/deployments/device_kinds.h"

#include <algorithm>

#include "base/format.h"

namespace troupe::cluster {

std::map<DeviceKind, int> living_by_kind(const Members& members, WeightChoice weight_dtype) {
  std::map<DeviceKind, int> counts;
  for (const auto& [id, actor] : members.all()) {
    if (actor.state == ActorState::dead || !actor.accepts_jobs()) continue;
    if (has_products_of(actor.device_kind(), weight_dtype)) ++counts[actor.device_kind()];
  }
  return counts;
}

int most_alike(const Members& members, WeightChoice weight_dtype) {
  int most = 0;
  for (const auto& [kind, count] : living_by_kind(members, weight_dtype))
    most = std::max(most, count);
  return most;
}

int most_alike_with_drained(const Members& members, WeightChoice weight_dtype) {
  std::map<DeviceKind, int> counts;
  int most = 0;
  for (const auto& [id, actor] : members.all())
    if ((actor.draining || (actor.state != ActorState::dead && actor.accepts_jobs())) &&
        has_products_of(actor.device_kind(), weight_dtype))
      most = std::max(most, ++counts[actor.device_kind()]);
  return most;
}

DeviceKind commonest_kind(const Members& members, WeightChoice weight_dtype, DeviceKind own) {
  const auto counts = living_by_kind(members, weight_dtype);
  const auto first = counts.find(own);
  auto kind = first != counts.end() || counts.empty() ? own : counts.begin()->first;
  for (const auto& [other, count] : counts)
    if (count > counts.at(kind)) kind = other;
  return kind;
}

std::string too_few_text(const Members& members, WeightChoice weight_dtype, int world) {
  const std::string degrees = fmt::format("dp × cfg × pp × ulysses × ring × tp = {}", world);
  const auto living = living_by_kind(members, WeightChoice::as_computed);
  const auto all = static_cast<int>(members.all().size());
  int sum = 0;
  for (const auto& [kind, count] : living)
    sum += count;
  const std::string others = sum < all ? fmt::format("{}{} drained or cannot start", all - sum,
                                                     all - sum == 1 ? " is" : " are")
                                       : "";
  if (living.size() < 2)
    return fmt::format("{} actors are needed, but the cluster has {}{}", degrees, all,
                       others.empty() ? "" : ", of which " + others);
  std::string kinds;
  for (const auto& [kind, count] : living)
    kinds += fmt::format("{}{} on {}", kinds.empty() ? "" : " and ", count, to_string(kind));
  const auto able = living_by_kind(members, weight_dtype);
  const std::string alone = able.size() == 1 && weight_dtype != WeightChoice::as_computed
                                ? ", and " + to_string(able.begin()->first) +
                                      " alone computes with " + to_string(weight_dtype) + " weights"
                                : "";
  return fmt::format(
      "{} actors of one kind are needed, but the cluster has {}{}{}: ask for at most {}, or let "
      "`troupe join` bring more of a kind",
      degrees, kinds, others.empty() ? "" : " (" + others + ")", alone,
      most_alike(members, weight_dtype));
}

}  // namespace troupe::cluster
