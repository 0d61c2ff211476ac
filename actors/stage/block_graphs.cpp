#include "actors/stage/block_graphs.h"

#include <ATen/ATen.h>

#include <any>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

/// Results of a call that stay at the host.
struct Left {
  std::vector<std::string> layers;
  std::string history;
};

}  // namespace

at::Tensor BlockGraphs::run(const Call& call, const at::Tensor& hidden, LayerWatch& layers,
                            const Compute& compute) {
  const auto before = store_ ? store_->history(call.slots, call.step) : std::string();
  bool called = false;
  const auto made = cache_.run(call.what + '|' + before, {hidden}, [&](const auto& inputs) {
    // A second call follows a recording that failed: the store goes back to where it was.
    if (std::exchange(called, true) && store_) store_->set_history(call.slots, call.step, before);
    LayerWatch seen;
    std::vector<at::Tensor> out{compute(inputs[0], seen)};
    if (!seen.sums().empty()) out.push_back(at::stack(seen.sums()));
    return kernels::GraphCache::Made{
        std::move(out),
        Left{seen.names(), store_ ? store_->history(call.slots, call.step) : std::string()}};
  });
  const auto& left = std::any_cast<const Left&>(made.host);
  if (!called && store_) store_->set_history(call.slots, call.step, left.history);
  if (made.tensors.size() > 1) layers.see_all(left.layers, made.tensors[1]);
  return made.tensors[0];
}

}  // namespace troupe::actors
