#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/attention.h"
#include "kernels/kv_history.h"
#include "models/dit/diffusion_transformer.h"

namespace troupe::actors {
namespace {

kernels::KeyValueRun run_of(const at::Tensor& kv) {
  const auto batch_first = kv.transpose(0, 1);
  return {batch_first.select(2, 0), batch_first.select(2, 1), {}, {}, {}};
}

}  // namespace

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

RingAttention::RingAttention(int rank, std::unique_ptr<models::KvStore> store, Links links)
    : rank_(rank), store_(std::move(store)), links_(std::move(links)) {}

bool RingAttention::delayed() const {
  return store_ && !call_.synchronous &&
         store_->shape().freshness == models::KvStore::Freshness::step_before;
}

void RingAttention::begin(Call call) {
  call_ = std::move(call);
}

void RingAttention::forget() {
  for (const auto& [block, waiting] : later_) {
    for (const auto& one : waiting)
      links_.wait(one.work);
  }
  later_.clear();
  if (store_) store_->forget();
}

models::TokenRuns RingAttention::fresh_tokens() const {
  if (delayed()) return call_.tokens[rank_];
  models::TokenRuns all;
  for (const auto& runs : call_.tokens)
    all.insert(all.end(), runs.begin(), runs.end());
  return all;
}

std::vector<RingAttention::Incoming> RingAttention::exchange(const at::Tensor& kv, bool needed) {
  std::vector<Incoming> incoming;
  if (!links_.ring || !needed) return incoming;
  std::erase_if(sends_, [](const tensor::Work& work) {
    if (!work.done()) return false;
    work.wait({});  // throws what ended it
    return true;
  });
  const int size = links_.ring->size();
  const auto block = kv.contiguous();
  for (int distance = 1; distance < size; ++distance) {
    const int from = (rank_ + size - distance) % size;
    const int to = (rank_ + distance) % size;
    auto shape = block.sizes().vec();
    shape[0] = models::count_of(call_.tokens[from]);
    Incoming one{
        call_.step, call_.tokens[from], call_.first_item, at::empty(shape, block.options()), {}};
    std::vector<tensor::PeerTensor> sends;
    std::vector<tensor::PeerTensor> receives;
    if (block.numel() > 0) sends.push_back({block, to});
    if (one.kv.numel() > 0) receives.push_back({one.kv, from});
    if (block.is_cuda()) {
      // One operation: on one stream a send would wait for the receive before it.
      if (!sends.empty() || !receives.empty()) one.work = links_.ring->grouped(sends, receives);
    } else {
      // Between processes of pairs, what is awaited need not wait for what is sent.
      if (!receives.empty()) one.work = links_.ring->receive(one.kv, from);
      if (!sends.empty()) sends_.push_back(links_.ring->send(block, to));
    }
    // A rank without heads is sent nothing, but keeps track of the rows as the others do.
    if (shape[0] > 0) {
      incoming.push_back(std::move(one));
    } else {
      sends_.push_back(one.work);
    }
  }
  return incoming;
}

void RingAttention::settle(int block) {
  const auto waiting = later_.find(block);
  if (waiting == later_.end()) return;
  auto& blocks = waiting->second;
  while (!blocks.empty() && blocks.front().step < call_.step) {
    links_.wait(blocks.front().work);
    const auto& one = blocks.front();
    store_->put(block, one.step, one.runs, one.kv, false, one.first_item);
    blocks.erase(blocks.begin());
  }
}

at::Tensor RingAttention::factors(int block, const std::vector<models::KvStore::Choice>& choices,
                                  models::KvStore::Items items) {
  if (!models::KvStore::needs_factors(choices)) return {};
  auto sums = store_->sums(block).slice(0, items.begin, items.end);
  if (links_.fresh) {
    sums = sums.clone();
    links_.wait(links_.fresh->all_reduce(sums, tensor::ReduceOp::sum));
  }
  return kernels::extrapolation_factors(sums);
}

at::Tensor RingAttention::attend(int block, const at::Tensor& qkv) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qkv.size(4)));
  const auto q = qkv.select(2, 0).transpose(0, 1);
  const auto kv = qkv.slice(2, 1, 3);
  const bool delay = delayed();
  if (store_) settle(block);
  auto incoming = exchange(kv, !(delay && call_.last_step));
  std::vector<kernels::KeyValueRun> here{run_of(kv)};
  if (store_) {
    store_->put(block, call_.step, call_.tokens[rank_], kv, !call_.synchronous, call_.first_item);
    const models::KvStore::Items items{call_.first_item, call_.first_item + kv.size(1)};
    const auto fresh = fresh_tokens();
    if (!call_.synchronous && models::count_of(fresh) > 0) {
      // If nothing comes from other ranks, the fresh rows are read back with the others, as one
      // run.
      const bool together = !links_.ring && !delay;
      const auto choices =
          store_->choose(block, call_.step, together ? models::TokenRuns{} : fresh, items.begin);
      if (together) here.clear();
      auto kept = store_->runs(block, choices, factors(block, choices, items), items);
      here.insert(here.end(), std::make_move_iterator(kept.begin()),
                  std::make_move_iterator(kept.end()));
    }
  }
  if (delay || incoming.empty()) {
    auto& later = later_[block];
    later.insert(later.end(), std::make_move_iterator(incoming.begin()),
                 std::make_move_iterator(incoming.end()));
    return kernels::attention(q, here, scale);
  }
  auto sum = kernels::attention_part(q, here, scale);
  const auto type = sum.out.scalar_type();
  if (incoming.size() > 1) sum.out = sum.out.to(at::kFloat);
  for (auto& one : incoming) {
    links_.wait(one.work);
    kernels::merge_attention(sum, kernels::attention_part(q, {run_of(one.kv)}, scale));
    if (store_) store_->put(block, call_.step, one.runs, one.kv, false, call_.first_item);
  }
  return sum.out.to(type);
}

SequenceAttention::Call SequenceAttention::call_of(const std::vector<models::TokenRuns>& tokens,
                                                   RingAttention::Call ring) const {
  Call call{std::move(ring), {}};
  for (int rank = 0; rank < place_.ring_degree; ++rank) {
    models::TokenRuns together;
    for (int ulysses = 0; ulysses < place_.ulysses_degree; ++ulysses) {
      const auto& own = tokens.at(rank * place_.ulysses_degree + ulysses);
      together.insert(together.end(), own.begin(), own.end());
      if (rank == place_.ring_rank) call.peer_tokens.push_back(models::count_of(own));
    }
    call.ring.tokens.push_back(std::move(together));
  }
  return call;
}

void SequenceAttention::begin(const std::vector<models::TokenRuns>& tokens, int step,
                              bool synchronous, bool last_step, std::int64_t first_item,
                              std::int64_t text_tokens) {
  const RingAttention::Call ring{step, {}, synchronous, last_step, first_item};
  all_ = call_of(tokens, ring);
  auto of_picture = tokens;
  for (auto& runs : of_picture)
    std::erase_if(runs, [&](const models::TokenRun& run) { return run.begin < text_tokens; });
  picture_ = call_of(of_picture, ring);
}

at::Tensor SequenceAttention::attend(int slot, const at::Tensor& qkv, models::Attend to) {
  const Call& call = to == models::Attend::everything ? all_ : picture_;
  ring_.begin(call.ring);
  if (!exchange_) return ring_.attend(slot, qkv.transpose(0, 1));
  const auto own_heads = exchange_->scatter_heads(qkv, call.peer_tokens);
  return exchange_->gather_heads(ring_.attend(slot, own_heads), call.peer_tokens);
}

}  // namespace troupe::actors
