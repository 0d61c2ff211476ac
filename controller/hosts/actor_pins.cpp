#include "controller/hosts/actor_pins.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>

#include "controller/hosts/affinity.h"

namespace troupe::cluster {
namespace {

CudaView cuda_view() {
  CudaView view;
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) view.visible = visible;
  if (const char* order = std::getenv("CUDA_DEVICE_ORDER")) view.order = order;
  return view;
}

Pins read_pins(const PinOptions& options) {
  const std::filesystem::path root = options.root.empty() ? "/" : options.root;
  const auto nodes = read_numa_nodes(root);
  if (nodes.size() < 2) return {};
  const bool on_gpu = options.device != "cpu";
  std::vector<PinnedActor> actors(static_cast<std::size_t>(options.actors),
                                  {.on_gpu = on_gpu, .threads = options.threads});
  if (on_gpu) {
    const auto gpus = in_cuda_order(read_gpus(root), cuda_view());
    for (std::size_t i = 0; i < actors.size() && i < gpus.size(); ++i)
      actors[i].gpu_node = gpus[i].node;
  }
  return pins_of(nodes, allowed_cpus(), actors);
}

}  // namespace

int visible_gpus() {
  const auto all = read_gpus("/");
  try {
    return static_cast<int>(in_cuda_order(all, cuda_view()).size());
  } catch (const std::invalid_argument&) {
    return static_cast<int>(all.size());
  }
}

ActorPins::ActorPins(const PinOptions& options) {
  if (options.how == "none") return;
  if (options.how != "numa")
    throw std::runtime_error("[cluster] pin is \"" + options.how + "\": none or numa");
  try {
    pins_ = read_pins(options);
  } catch (const std::exception& error) {
    pins_.why_not = error.what();
  }
}

const Pin* ActorPins::of(std::uint32_t id, const std::string& device) {
  std::size_t rank = 0;
  if (device == "cpu") {
    rank = ranks_.emplace(id, ranks_.size()).first->second;
  } else if (const auto colon = device.find(':'); colon != std::string::npos) {
    std::from_chars(device.data() + colon + 1, device.data() + device.size(), rank);
  }
  if (rank >= pins_.of_actor.size() || !pins_.of_actor[rank]) return nullptr;
  return &*pins_.of_actor[rank];
}

}  // namespace troupe::cluster
