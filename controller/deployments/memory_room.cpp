#include "controller/deployments/memory_room.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "controller/deployments/device_kinds.h"
#include "transport/wire/request_fields.h"

namespace troupe::cluster {

namespace {

bool lacks_memory(const Room& room) {
  if (room.limit == kNoLimit) return false;
  const auto held = room.held();
  return held > room.limit || room.wanted > room.limit - held;
}

bool lacks(const Room& room) {
  return lacks_memory(room) || (room.newcomer && room.residents.size() >= kMostResidents);
}

/// True when `a` goes before `b`.
bool goes_before(const Resident& a, const Resident& b) {
  const auto key = [](const Resident& one) {
    return std::tuple(one.in_use, one.last_used, one.deployment);
  };
  return key(a) < key(b);
}

/// Takes text encoders out of these rooms where memory lacks, as far as it does.
std::vector<Evictions::Encoders> give_up_encoders(std::vector<Room>& rooms) {
  std::vector<Evictions::Encoders> given;
  for (auto& room : rooms) {
    while (lacks_memory(room)) {
      Resident* first = nullptr;
      for (auto& resident : room.residents)
        if (resident.encoders > 0 && (!first || goes_before(resident, *first))) first = &resident;
      if (!first) break;
      first->encoders = 0;
      given.push_back({room.actor, first->deployment});
    }
  }
  return given;
}

void take_out(std::vector<Room>& rooms, std::uint64_t deployment) {
  for (auto& room : rooms)
    std::erase_if(room.residents,
                  [&](const Resident& one) { return one.deployment == deployment; });
}

/// Chooses unused deployments to unload where no text encoder is left to give up.
std::optional<std::vector<std::uint64_t>> unloaded(std::vector<Room> rooms, std::uint64_t keep) {
  std::vector<std::uint64_t> gone;
  for (;;) {
    const Resident* oldest = nullptr;
    bool enough = true;
    for (const auto& room : rooms) {
      if (!lacks(room)) continue;
      enough = false;
      for (const auto& resident : room.residents) {
        if (resident.in_use || resident.deployment == keep) continue;
        if (!oldest || goes_before(resident, *oldest)) oldest = &resident;
      }
    }
    if (enough) return gone;
    if (!oldest) return std::nullopt;
    gone.push_back(oldest->deployment);
    take_out(rooms, gone.back());
  }
}

}  // namespace

std::vector<MemoryNeed> needs_of(const plan::Plan& plan) {
  std::vector<MemoryNeed> needs;
  for (const auto& own : plan.memory) {
    const auto kept = own.weights + own.decoder;
    needs.push_back({kept, own.peak() - kept, own.encoders, own.second});
  }
  needs.resize(static_cast<std::size_t>(plan.degrees.world()));
  return needs;
}

std::uint64_t Room::held() const {
  std::uint64_t sum = 0;
  for (const auto& resident : residents)
    sum += resident.weights + resident.working + resident.encoders;
  return sum;
}

std::uint64_t Room::encoders() const {
  std::uint64_t sum = 0;
  for (const auto& resident : residents)
    sum += resident.encoders;
  return sum;
}

std::optional<Evictions> evictions(const std::vector<Room>& rooms, std::uint64_t keep) {
  auto bare = rooms;
  give_up_encoders(bare);
  auto gone = unloaded(std::move(bare), keep);
  if (!gone) return std::nullopt;
  // What these make room for need not go.
  auto left = rooms;
  for (const auto deployment : *gone)
    take_out(left, deployment);
  auto encoders = give_up_encoders(left);
  return Evictions{std::move(encoders), std::move(*gone)};
}

std::optional<std::vector<ActorId>> by_memory(const std::vector<MemoryNeed>& needs,
                                              std::vector<std::pair<ActorId, std::uint64_t>> limits,
                                              std::optional<Shortage>* why) {
  if (limits.size() < needs.size()) return std::nullopt;
  std::vector<std::size_t> ranks(needs.size());
  std::iota(ranks.begin(), ranks.end(), std::size_t{0});
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::size_t a, std::size_t b) {
    return needs[a].total() > needs[b].total();
  });
  std::stable_sort(limits.begin(), limits.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<ActorId> actors(needs.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& [actor, limit] = limits[i];
    if (needs[ranks[i]].total() > limit) {
      if (why) *why = Shortage{static_cast<int>(ranks[i]), needs[ranks[i]].total(), actor, limit};
      return std::nullopt;
    }
    actors[ranks[i]] = actor;
  }
  return actors;
}

Capacity capacity_of(const Members& members) {
  Capacity capacity;
  for (const auto& [id, actor] : members.all())
    if (actor.accepts_jobs()) capacity[actor.device_kind()].emplace_back(id, actor.may_hold());
  return capacity;
}

std::optional<Shortage> shortage(const Capacity& capacity, const plan::Plan& plan) {
  const auto needs = needs_of(plan);
  std::optional<Shortage> found;
  for (const auto& [kind, limits] : capacity) {
    if (!has_products_of(kind, plan.request.weight_dtype)) continue;
    std::optional<Shortage> here;
    if (by_memory(needs, limits, &here)) return std::nullopt;
    if (here && (!found || here->limit > found->limit)) found = here;
  }
  return found;
}

std::size_t most_placed(std::vector<std::uint64_t> needs, std::vector<std::uint64_t> limits) {
  std::sort(needs.begin(), needs.end());
  std::sort(limits.begin(), limits.end());
  std::size_t placed = 0;
  for (const auto limit : limits)
    placed += placed < needs.size() && needs[placed] <= limit ? 1 : 0;
  return placed;
}

namespace {

std::optional<plan::Plan> planned(const spec::ModelSpec& model, const wire::ImageRequest& request,
                                  const wire::Parallelism& parallelism,
                                  const plan::Machine& machine) {
  try {
    return plan::make_plan(model, request, parallelism, machine);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::string fullest(const plan::Plan& plan) {
  std::uint64_t most = 0;
  for (const auto& own : plan.memory)
    most = std::max(most, own.peak());
  return bytes_text(most) + " at its fullest actor";
}

std::string with_value(std::string_view option, int value) {
  return fmt::format("{} {}", option, value);
}

/// The options that make `mix` of a job's degrees: "--cfg 2 --pp 2".
std::string options_of(const wire::Parallelism& mix, const wire::Parallelism& before) {
  std::string text;
  wire::for_each_degree([&](const wire::DegreeField& field, auto degree) {
    if (mix.*degree == 1 && before.*degree == 1) return;
    text += (text.empty() ? "" : " ") + with_value(field.option, mix.*degree);
  });
  return text;
}

}  // namespace

std::string too_large(const plan::Plan& plan, const Shortage& lack, const std::string& actor) {
  const auto& own = plan.memory.at(static_cast<std::size_t>(lack.rank));
  std::string parts;
  for (const auto& [name, bytes] :
       {std::pair{"weights", own.weights}, std::pair{"K,V", own.kv},
        std::pair{"activations", own.activations}, std::pair{"text encoder", own.text},
        std::pair{plan.sent_pictures(), own.picture}, std::pair{"decoder", own.vae}}) {
    if (bytes > 0)
      parts += (parts.empty() ? "" : ", ") + std::string(name) + " " + bytes_text(bytes);
  }
  return fmt::format("[memory] rank {} needs {} ({}), and {} may hold {}", lack.rank,
                     bytes_text(lack.needs), parts, actor, bytes_text(lack.limit));
}

std::optional<wire::Parallelism> fitting_mix(const spec::ModelSpec& model,
                                             const wire::ImageRequest& request, int actors,
                                             const plan::Machine& machine, std::uint64_t bytes) {
  plan::Limits limits;
  limits.memory = bytes;
  for (int some = std::min(2, actors);; some = std::min(2 * some, actors)) {
    const auto candidates = plan::choose_degrees(model, request, some, machine, limits);
    if (const auto* best = plan::best_of(candidates)) return best->parallelism;
    if (some == actors) return std::nullopt;
  }
}

std::string memory_remedy(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                          const std::function<bool(const plan::Plan&)>& fits,
                          const std::string& among,
                          const std::function<std::optional<wire::Parallelism>()>& mix,
                          const plan::Machine& machine) {
  const auto attempt = [&](const std::string& option, const wire::ImageRequest& request,
                           const wire::Parallelism& parallelism) -> std::optional<std::string> {
    const auto plan = planned(model, request, parallelism, machine);
    if (!plan || plan->degrees.world() > actors || !fits(*plan)) return std::nullopt;
    return option + " needs " + fullest(*plan);
  };
  // Their pixels cost what they cost at whatever degrees.
  using Side = std::int32_t wire::ImageRequest::*;
  for (const auto& [picture, height, width] :
       {std::tuple<const char*, Side, Side>{"an --init-image",
                                            &wire::ImageRequest::init_image_height,
                                            &wire::ImageRequest::init_image_width},
        {"a --mask", &wire::ImageRequest::mask_image_height,
         &wire::ImageRequest::mask_image_width}}) {
    auto request = job.request;
    if (request.*height <= request.height && request.*width <= request.width) continue;
    request.*height = request.height;
    request.*width = request.width;
    const auto option = fmt::format("{} of {} x {} in place of {} x {}", picture, request.width,
                                    request.height, job.request.*width, job.request.*height);
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  using Degree = std::int32_t wire::Parallelism::*;
  constexpr auto& kDegrees = wire::kDegreeFields;
  for (const auto& [degree, field] :
       {std::pair<Degree, wire::DegreeField>{&wire::Parallelism::pp, kDegrees.pp},
        {&wire::Parallelism::tp, kDegrees.tp},
        {&wire::Parallelism::vae, kDegrees.vae}}) {
    auto parallelism = job.parallelism;
    while (++(parallelism.*degree) <= actors) {
      const auto option = with_value(field.option, parallelism.*degree);
      if (auto found = attempt(option, job.request, parallelism)) return *found;
    }
  }
  if (const auto found = mix ? mix() : std::nullopt) {
    if (auto fitting = attempt(options_of(*found, job.parallelism), job.request, *found))
      return *fitting;
  }
  auto request = job.request;
  request.vae_tiling = true;
  if (auto found =
          attempt(std::string(wire::kRequestFields.vae_tiling.option), request, job.parallelism))
    return *found;
  if (job.request.dtype == ComputeType::float32) {
    request = job.request;
    request.dtype = ComputeType::bfloat16;
    const auto option =
        std::string(wire::kRequestFields.dtype.option) + " " + to_string(request.dtype);
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  if (job.request.offload == OffloadChoice::none) {
    request = job.request;
    request.offload = OffloadChoice::blocks;
    const auto option = std::string(wire::kRequestFields.offload.option) + " " +
                        to_string(request.offload) + " (slower)";
    if (auto found = attempt(option, request, job.parallelism)) return *found;
  }
  const auto on = among.empty() ? counted(actors, "actor") : among;
  const std::string others = "more actors, a smaller picture or fewer at a time";
  if (mix || actors == 1) {
    return "no pp, tp or shared decoding" + std::string(mix ? " and no mix of degrees" : "") +
           " on " + on + " is enough; " + others + " are";
  }
  return "no pp, tp or shared decoding by itself on " + on + " is enough; a mix of degrees (" +
         std::string(wire::kJobOptions.automatic) + " auto looks for one) may be, or " + others;
}

}  // namespace troupe::cluster
