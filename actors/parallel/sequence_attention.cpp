#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
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

/// kv [tokens of `runs`, B, 2, H, d] → what of it is no padding, neighbours as one run.
std::vector<kernels::KeyValueRun> seen_runs(const at::Tensor& kv, const models::TokenRuns& runs,
                                            models::TokenRun padding) {
  if (padding.size() == 0) return {run_of(kv)};
  models::TokenRuns places;  // in kv
  std::int64_t offset = 0;
  for (const auto& run : runs) {
    for (const auto& part : models::without(run, padding)) {
      const auto begin = offset + part.begin - run.begin;
      if (!places.empty() && places.back().end == begin)
        places.back().end = begin + part.size();
      else
        places.push_back({begin, begin + part.size()});
    }
    offset += run.size();
  }
  std::vector<kernels::KeyValueRun> seen;
  for (const auto& place : places)
    seen.push_back(run_of(kv.slice(0, place.begin, place.end)));
  return seen;
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

std::vector<RingAttention::Alike> RingAttention::alike(std::int64_t first,
                                                       std::int64_t count) const {
  if (padding_.empty()) return {{{first, first + count}, {}}};
  std::vector<Alike> found;
  for (auto item = first; item < first + count; ++item) {
    const auto& padding = padding_.at(static_cast<std::size_t>(item));
    if (!found.empty() && found.back().padding == padding)
      ++found.back().items.end;
    else
      found.push_back({{item, item + 1}, padding});
  }
  return found;
}

void RingAttention::keep(int block, int step, const models::TokenRuns& runs, const at::Tensor& kv,
                         bool fits, std::int64_t first_item) {
  for (const auto& [items, padding] : alike(first_item, kv.size(1))) {
    const auto own = kv.slice(1, items.begin - first_item, items.end - first_item);
    store_->put(block, step, runs, own, fits, items.begin, padding);
  }
}

void RingAttention::settle(int block) {
  const auto waiting = later_.find(block);
  if (waiting == later_.end()) return;
  auto& blocks = waiting->second;
  while (!blocks.empty() && blocks.front().step < call_.step) {
    links_.wait(blocks.front().work);
    const auto& one = blocks.front();
    keep(block, one.step, one.runs, one.kv, false, one.first_item);
    blocks.erase(blocks.begin());
  }
}

at::Tensor RingAttention::factors(int block, models::KvStore::Items items) {
  auto sums = store_->sums(block).slice(0, items.begin, items.end);
  if (links_.fresh) {
    sums = sums.clone();
    links_.wait(links_.fresh->all_reduce(sums, tensor::ReduceOp::sum));
  }
  return kernels::extrapolation_factors(sums);
}

std::vector<std::vector<kernels::KeyValueRun>> RingAttention::kept(int block,
                                                                   const std::vector<Alike>& of,
                                                                   const models::TokenRuns& fresh) {
  std::vector<std::vector<models::KvStore::Choice>> choices;
  bool extrapolates = false;
  for (const auto& [items, padding] : of) {
    choices.push_back(store_->choose(block, call_.step, fresh, items.begin));
    extrapolates = extrapolates || models::KvStore::needs_factors(choices.back());
  }
  const models::KvStore::Items all{of.front().items.begin, of.back().items.end};
  const auto of_all = extrapolates ? factors(block, all) : at::Tensor();
  std::vector<std::vector<kernels::KeyValueRun>> runs;
  for (std::size_t i = 0; i < of.size(); ++i) {
    const auto& items = of[i].items;
    const auto own = extrapolates ? of_all.slice(0, items.begin - all.begin, items.end - all.begin)
                                  : at::Tensor();
    runs.push_back(store_->runs(block, choices[i], own, items));
  }
  return runs;
}

at::Tensor RingAttention::attend(int block, const at::Tensor& qkv) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(qkv.size(4)));
  const auto kv = qkv.slice(2, 1, 3);
  const bool delay = delayed();
  if (store_) settle(block);
  auto incoming = exchange(kv, !(delay && call_.last_step));
  const auto groups = alike(call_.first_item, kv.size(1));
  const auto of_group = [&](const at::Tensor& all, const Alike& of) {
    return all.slice(1, of.items.begin - call_.first_item, of.items.end - call_.first_item);
  };
  std::vector<std::vector<kernels::KeyValueRun>> here;
  for (const Alike& of : groups)
    here.push_back(seen_runs(of_group(kv, of), call_.tokens[rank_], of.padding));
  if (store_) {
    keep(block, call_.step, call_.tokens[rank_], kv, !call_.synchronous, call_.first_item);
    const auto fresh = fresh_tokens();
    if (!call_.synchronous && models::count_of(fresh) > 0) {
      // If nothing comes from other ranks, the fresh rows are read back with the others, as one
      // run.
      const bool together = !links_.ring && !delay;
      auto others = kept(block, groups, together ? models::TokenRuns{} : fresh);
      for (std::size_t i = 0; i < groups.size(); ++i) {
        if (together) here[i].clear();
        here[i].insert(here[i].end(), std::make_move_iterator(others[i].begin()),
                       std::make_move_iterator(others[i].end()));
      }
    }
  }
  std::vector<at::Tensor> queries, outputs;
  for (const Alike& of : groups)
    queries.push_back(of_group(qkv.select(2, 0), of).transpose(0, 1));
  if (delay || incoming.empty()) {
    auto& later = later_[block];
    later.insert(later.end(), std::make_move_iterator(incoming.begin()),
                 std::make_move_iterator(incoming.end()));
    for (std::size_t i = 0; i < groups.size(); ++i)
      outputs.push_back(kernels::attention(queries[i], here[i], scale));
    return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
  }
  std::vector<kernels::PartialAttention> sums;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    sums.push_back(kernels::attention_part(queries[i], here[i], scale));
    if (incoming.size() > 1) sums.back().out = sums.back().out.to(at::kFloat);
  }
  for (auto& one : incoming) {
    links_.wait(one.work);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto runs = seen_runs(of_group(one.kv, groups[i]), one.runs, groups[i].padding);
      kernels::merge_attention(sums[i], kernels::attention_part(queries[i], runs, scale));
    }
    if (store_) keep(block, call_.step, one.runs, one.kv, false, call_.first_item);
  }
  for (const auto& sum : sums)
    outputs.push_back(sum.out.to(qkv.scalar_type()));
  return outputs.size() == 1 ? outputs.front() : at::cat(outputs);
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
  for (auto& runs : of_picture) {
    for (auto& run : runs)
      run.begin = std::max(run.begin, text_tokens);
    std::erase_if(runs, [](const models::TokenRun& run) { return run.size() <= 0; });
  }
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
