#include "models/vae/causal_conv3d.h"

#include <ATen/ATen.h>

#include <utility>

namespace troupe::models::vae {

CausalConv3d::CausalConv3d(const Loader& load, const std::string& name, std::int64_t in,
                           std::int64_t out, std::int64_t side, int& memories)
    : memory_(memories++) {
  const at::Tensor weight = load.get(name + ".weight", {out, in, 3, side, side});
  const auto of_frame = [&](std::int64_t frame) {
    return weight.select(2, frame).contiguous(load.memory_format());
  };
  now_ = Conv2d(of_frame(2), load.get(name + ".bias", {out}));
  last_ = Conv2d(of_frame(1), {});
  before_ = Conv2d(of_frame(0), {});
}

at::Tensor CausalConv3d::operator()(const at::Tensor& x, FrameMemories& memories,
                                    const Pass& pass) const {
  FrameMemory& memory = memories.at(memory_);
  const at::Tensor y = now_({x}, pass);
  if (memory.last.defined()) last_.add_to(y, {memory.last}, pass);
  if (memory.before.defined()) before_.add_to(y, {memory.before}, pass);
  memory.before = std::move(memory.last);
  memory.last = x;
  return y;
}

}  // namespace troupe::models::vae
