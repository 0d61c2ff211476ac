#include "controller/hosts/gpu_order.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "base/numbers.h"

namespace troupe::cluster {
namespace {

bool before(const LocalGpu& a, const LocalGpu& b) {
  // A domain beyond 0xffff has more digits.
  return std::tuple(a.bus_id.size(), a.bus_id) < std::tuple(b.bus_id.size(), b.bus_id);
}

void need_order(const std::vector<LocalGpu>& gpus, const CudaView& view) {
  const bool alike = std::all_of(gpus.begin(), gpus.end(),
                                 [&](const auto& gpu) { return gpu.model == gpus.front().model; });
  if (alike || view.order == "PCI_BUS_ID") return;
  throw std::invalid_argument(
      "the GPUs are of different models, and CUDA counts them by speed: "
      "CUDA_DEVICE_ORDER=PCI_BUS_ID would tell which is which");
}

}  // namespace

std::vector<LocalGpu> in_cuda_order(std::vector<LocalGpu> gpus, const CudaView& view) {
  std::sort(gpus.begin(), gpus.end(), before);
  if (!view.visible) {
    need_order(gpus, view);
    return gpus;
  }
  std::vector<LocalGpu> shown;
  std::istringstream names(*view.visible);
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    if (name.starts_with("MIG"))
      throw std::invalid_argument("CUDA_VISIBLE_DEVICES names a part of a GPU, " +
                                  name.substr(0, 80));
    if (name.starts_with("GPU-")) {
      const auto is = [&](const auto& gpu) { return gpu.uuid.starts_with(name); };
      // CUDA shows nothing from the first on that it does not know.
      if (std::count_if(gpus.begin(), gpus.end(), is) != 1) break;
      shown.push_back(*std::find_if(gpus.begin(), gpus.end(), is));
      continue;
    }
    const auto index = parse_number<std::size_t>(name);
    if (!index || *index >= gpus.size()) break;
    need_order(gpus, view);
    shown.push_back(gpus[*index]);
  }
  return shown;
}

}  // namespace troupe::cluster
