#include "actors/parallel/head_exchange.h"

#include <ATen/ATen.h>

#include <numeric>

#include "models/dit/diffusion_transformer.h"

namespace troupe::actors {

HeadExchange::HeadExchange(std::shared_ptr<tensor::Group> group, std::int64_t heads,
                           WaitForWork wait)
    : group_(std::move(group)), heads_(heads), wait_(std::move(wait)) {}

std::int64_t HeadExchange::first_head(int rank) const {
  return models::WeightShard{rank, group_->size()}.begin(heads_);
}

at::Tensor HeadExchange::scatter_heads(const at::Tensor& qkv,
                                       const std::vector<std::int64_t>& tokens) {
  const auto all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  const auto batch = qkv.size(0);
  auto mine = at::empty({all, batch, 3, own_heads(), qkv.size(4)}, qkv.options());
  const auto token_first = qkv.transpose(0, 1);
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> ins;
  std::int64_t at = 0;
  for (int peer = 0; peer < group_->size(); ++peer) {
    outs.push_back(mine.slice(0, at, at + tokens[peer]));
    at += tokens[peer];
    const auto heads = token_first.slice(3, first_head(peer), first_head(peer + 1));
    if (peer == group_->rank()) outs.back().copy_(heads);
    ins.push_back(peer == group_->rank() ? outs.back() : heads.contiguous());
  }
  wait_(group_->all_to_all(outs, ins));
  return mine;
}

at::Tensor HeadExchange::gather_heads(const at::Tensor& out,
                                      const std::vector<std::int64_t>& tokens) {
  const auto batch = out.size(0);
  const auto width = out.size(3);
  const auto own_tokens = tokens[group_->rank()];
  std::vector<at::Tensor> outs;
  std::vector<at::Tensor> ins;
  std::int64_t at = 0;
  for (int peer = 0; peer < group_->size(); ++peer) {
    outs.push_back(at::empty({batch, own_tokens, head_count(peer), width}, out.options()));
    ins.push_back(out.slice(1, at, at + tokens[peer]).contiguous());
    at += tokens[peer];
  }
  wait_(group_->all_to_all(outs, ins));
  return at::cat(outs, 2);
}

}  // namespace troupe::actors
