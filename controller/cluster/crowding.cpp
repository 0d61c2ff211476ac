#include "controller/cluster/crowding.h"

#include <algorithm>
#include <thread>

#include "controller/cluster/memory_room.h"
#include "models/spec/counted.h"
#include "transport/ground/available_memory.h"

namespace troupe::cluster {
namespace {

/// Threads a core that are many.
constexpr int kManyThreads = 8;
/// What an actor without a model has for itself, measured: its libraries' pages are shared.
constexpr std::uint64_t kEmptyActor = 60'000'000;

}  // namespace

Ground this_ground(const std::filesystem::path& root) {
  return {.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
          .free_memory = ground::available_memory(root)};
}

std::optional<std::string> crowding(int actors, int threads_per_actor, const std::string& device,
                                    const Ground& ground) {
  const auto threads = std::int64_t{actors} * threads_per_actor;
  if (device != "cpu" || threads <= std::int64_t{ground.cores} * kManyThreads) return std::nullopt;
  return spec::counted(actors, "actor") + (actors == 1 ? " computes" : " compute") + " with " +
         spec::counted(threads, "thread") + " on " + spec::counted(ground.cores, "core") +
         ": starting and every job will be slow";
}

std::optional<std::string> too_crowded(int actors, const Ground& ground) {
  const auto needed = static_cast<std::uint64_t>(actors) * kEmptyActor;
  if (!ground.free_memory || needed <= *ground.free_memory) return std::nullopt;
  const auto most = *ground.free_memory / kEmptyActor;
  return spec::counted(actors, "actor") + (actors == 1 ? " takes" : " take") + " about " +
         bytes_text(needed) + " of memory before any model, and " +
         bytes_text(*ground.free_memory) +
         " are free: " + (most > 0 ? "at most " + std::to_string(most) : "not even one") + " here";
}

int starting_at_once(int cores) {
  return std::max(4, 2 * cores);
}

}  // namespace troupe::cluster
