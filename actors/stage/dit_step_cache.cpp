#include <ATen/ATen.h>

#include "actors/stage/dit_network.h"
#include "models/spec/transformer_spec.h"

namespace troupe::actors {

std::unique_ptr<StepCache> DitJob::make_cache() {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  const bool side_by_side = request.method == Method::distrifusion;
  const auto micro_steps = static_cast<std::int64_t>(begin.micro_steps.size());
  StepCache::Shape shape{.blocks = transformer_.part().blocks,
                         .items = job_.images * job_.branches,
                         .width = transformer_.hidden_width(),
                         .edge = transformer_.output_width(),
                         .watches_block = request.step_cache == StepCacheRule::first_block,
                         .patched = request.method != Method::exact,
                         .tells_apart = request.kv == KvUse::predict,
                         .columns = side_by_side ? begin.ring.degree : 1,
                         .own_column = side_by_side ? begin.ring.rank : 0,
                         .tokens = {},
                         .busy = {}};
  for (int micro = 0; micro < micro_steps; ++micro) {
    shape.tokens.push_back(count_rows(own_rows(micro)) * columns_);
    StepCache::Columns busy(static_cast<std::size_t>(shape.columns), false);
    for (int rank = 0; rank < sequence_degree(begin); ++rank) {
      if (count_rows(rows_of(begin.micro_steps, micro, rank)) > 0)
        busy[shape.columns == 1 ? 0 : rank / begin.ulysses.degree] = true;
    }
    shape.busy.push_back(std::move(busy));
  }
  SkipRule rule(request.step_cache_threshold,
                shape.watches_block ? std::vector<double>{} : spec::teacache_polynomial(facts_),
                shape.items, micro_steps * shape.columns);
  StepCache::Calls calls{
      .run =
          [this](const NetworkStep& step, at::Tensor hidden, wire::RowRange items,
                 models::BlockRange blocks, const StepCache::Columns& columns) {
            return run_blocks(step, std::move(hidden), items, blocks, columns);
          },
      .signal =
          [this](const NetworkStep& step, const at::Tensor& hidden) {
            return transformer_.step_signal(hidden, call_tokens(step.place.patch),
                                            condition(step.place.step, step.items));
          },
      .sum =
          [this](at::Tensor& sums) {
            // Shards of the weights see the same hidden states: one of them counts.
            if (job_.begin.tp.rank != 0) sums.zero_();
            if (const auto stage = job_.group(job_.begin.groups.stage))
              job_.wait(stage->all_reduce(sums, tensor::ReduceOp::sum));
            job_.await_device();
          }};
  return std::make_unique<StepCache>(std::move(shape), std::move(rule), std::move(calls));
}

std::int64_t DitJob::note_size(const NetworkStep& step) const {
  return cache_ ? cache_->note_size(step) : 0;
}

void DitJob::take_note(const NetworkStep& step, const at::Tensor& note) {
  cache_->take_note(step, note);
}

at::Tensor DitJob::note(const NetworkStep& step) const {
  return cache_->note(step, device_);
}

CacheUse DitJob::cache_use() const {
  return cache_ ? cache_->use() : CacheUse{};
}

}  // namespace troupe::actors
