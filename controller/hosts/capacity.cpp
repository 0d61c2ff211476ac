#include "controller/hosts/capacity.h"

#include <unistd.h>
#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/available_memory.h"
#include "base/format.h"
#include "base/text.h"
#include "controller/hosts/local_process_host.h"
#include "controller/hosts/process.h"

namespace troupe::cluster {

namespace {

/// Number of threads per core that is many.
constexpr int kManyThreads = 8;
/// Bytes that an actor without a model has for itself, measured: its libraries' pages are shared.
constexpr std::uint64_t kEmptyActor = 60'000'000;

}  // namespace

HostCapacity local_capacity(const std::filesystem::path& root) {
  return {.cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency())),
          .free_memory = available_memory(root)};
}

std::vector<std::int32_t> local_gpus(int first_gpu) {
  std::vector<std::int32_t> gpus;
  for (int gpu = first_gpu; gpu < 64; ++gpu) {
    if (access(fmt::format("/dev/nvidia{}", gpu).c_str(), F_OK) != 0) break;
    gpus.push_back(gpu);
  }
  return gpus;
}

std::optional<std::string> crowding(int actors, int threads_per_actor, const std::string& device,
                                    const HostCapacity& capacity) {
  const auto threads = std::int64_t{actors} * threads_per_actor;
  if (device != "cpu" || threads <= std::int64_t{capacity.cores} * kManyThreads)
    return std::nullopt;
  return counted(actors, "actor") + (actors == 1 ? " computes" : " compute") + " with " +
         counted(threads, "thread") + " on " + counted(capacity.cores, "core") +
         ": starting and every job will be slow";
}

std::optional<std::string> too_crowded(int actors, const HostCapacity& capacity) {
  const auto needed = static_cast<std::uint64_t>(actors) * kEmptyActor;
  if (!capacity.free_memory || needed <= *capacity.free_memory) return std::nullopt;
  const auto most = *capacity.free_memory / kEmptyActor;
  return counted(actors, "actor") + (actors == 1 ? " takes" : " take") + " about " +
         bytes_text(needed) + " of memory before any model, and " +
         bytes_text(*capacity.free_memory) +
         " are free: " + (most > 0 ? fmt::format("at most {}", most) : "not even one") + " here";
}

int starting_at_once(int cores) {
  return std::max(4, 2 * cores);
}

namespace {

constexpr std::chrono::seconds kDeadline{60};

}  // namespace

void check_device(const HostOptions& host) {
  if (host.device == "cpu") return;
  const std::string last = device_of(host.device, host.actors - 1, host.actors_per_gpu);
  ProcessOptions options;
  options.program = find_actor_program();
  options.arguments = {"--probe", last, std::to_string(getpid())};
  bool probed = false;
  options.on_line = [&](const std::string& line) { probed |= line == "troupe-probed"; };
  boost::asio::io_context io{1};
  std::optional<ExitCause> end;
  const Process process(io, options, [&](const ExitCause& cause) {
    end = cause;
    io.stop();
  });
  io.run_for(kDeadline);
  if (!end)
    throw std::runtime_error(
        fmt::format("[device] {}: no answer within {} s", last, kDeadline.count()));
  if (end->by_signal || end->number != 0 || !probed)
    throw std::runtime_error("[device] " +
                             (end->log.empty() ? last + ": " + end->text() : end->log.back()));
}

}  // namespace troupe::cluster
