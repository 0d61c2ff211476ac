#include "actors/stage/null_group.h"

#include <ATen/ATen.h>

namespace troupe::actors {
namespace {

void fill(const at::Tensor& received) {
  received.fill_(received.scalar_type() == at::kByte ? 1 : 0);
}

}  // namespace

tensor::Work NullGroup::send(const at::Tensor&, int) {
  return {};
}

tensor::Work NullGroup::receive(const at::Tensor& out, int) {
  fill(out);
  return {};
}

tensor::Work NullGroup::grouped(const std::vector<tensor::PeerTensor>&,
                                const std::vector<tensor::PeerTensor>& receives) {
  for (const auto& receive : receives)
    fill(receive.tensor);
  return {};
}

tensor::Work NullGroup::broadcast(const at::Tensor& inout, int root) {
  if (root != rank_) fill(inout);
  return {};
}

tensor::Work NullGroup::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor&) {
  for (const auto& out : outs)
    fill(out);
  return {};
}

tensor::Work NullGroup::all_to_all(const std::vector<at::Tensor>& outs,
                                   const std::vector<at::Tensor>&) {
  for (const auto& out : outs)
    fill(out);
  return {};
}

tensor::Work NullGroup::all_reduce(const at::Tensor&, tensor::ReduceOp) {
  return {};
}

}  // namespace troupe::actors
