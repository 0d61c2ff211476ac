#include "actors/stage/dit_network.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "actors/parallel/group_sum.h"
#include "actors/stage/live_attention.h"
#include "models/spec/transformer_spec.h"

namespace troupe::actors {
namespace {

/// Returns TeaCache's polynomial. For models of two transformers none is published.
std::vector<double> polynomial_of(const spec::ModelSpec& model) {
  if (model.second_transformer) return {1, 0};
  return spec::teacache_polynomial(model.transformer);
}

}  // namespace

DitNetwork::DitNetwork(const spec::ModelSpec& spec, const wire::LoadStage& load,
                       const models::LoraWeights& loras, at::ScalarType dtype, at::Device device,
                       const std::function<void()>& tick)
    : spec_(spec),
      device_(device),
      keeps_both_(load.keeps_both),
      part_{.blocks = {load.first_block, load.last_block},
            .embeds = load.embeds,
            .projects = load.projects,
            .shard = {load.tp_rank, load.tp_degree}} {
  using Keep = models::KeepBlocks;
  // If the device's memory is the host's, a copy there would save nothing.
  const auto streamed = device.is_cpu() ? Keep::from_files : Keep::from_host;
  const auto keep = load.offload == OffloadChoice::blocks ? streamed : Keep::all;
  load_ = [&spec, &loras, dtype, device, keep, type = weight_type(load.weight_dtype)](
              const models::StagePart& part, const std::function<void()>& ticks) {
    return models::load_transformer(spec, part, dtype, device, ticks, &loras, type, keep);
  };
  transformer(false, tick);
  if (spec.second_transformer && keeps_both_) transformer(true, tick);
}

std::int64_t DitNetwork::bytes() const {
  std::int64_t total = 0;
  for (const Made& one : held_)
    total += one ? one->bytes() : 0;
  return total;
}

const models::DiffusionTransformer& DitNetwork::transformer(
    bool second, const std::function<void()>& tick) const {
  Made& wanted = held_.at(second ? 1 : 0);
  if (!wanted) {
    if (!keeps_both_) held_.at(second ? 0 : 1).reset();
    auto part = part_;
    part.of_second = second;
    wanted = load_(part, tick);
    ++loads_;
  }
  return *wanted;
}

models::Caption DitNetwork::project_caption(const std::vector<models::EncoderOutput>& text) const {
  const auto projected = [&](bool second) {
    if (const Made& held = held_.at(second ? 1 : 0)) return held->project_caption(text);
    auto ends = part_;
    ends.blocks = {part_.blocks.begin, part_.blocks.begin};
    ends.projects = false;
    ends.of_second = second;
    return load_(ends, {})->project_caption(text);
  };
  models::Caption caption = projected(false);
  if (spec_.second_transformer)
    caption.states = at::cat({caption.states, projected(true).states}, 2);
  return caption;
}

std::unique_ptr<JobNetwork> DitNetwork::begin(const NetworkJob& job) const {
  return std::make_unique<DitJob>(*this, job);
}

DitJob::DitJob(const DitNetwork& network, const NetworkJob& job)
    : network_(network),
      facts_(network.spec().transformer),
      device_(network.device()),
      job_(job),
      second_(is_of_second(std::min(job.begin.first_step, job.begin.request.steps - 1))),
      columns_(job.size.latent_width / facts_.patch_size) {
  attention_ = make_attention();
  if (job_.begin.groups.tp != 0) {
    sums_ = std::make_unique<GroupSum>(job_.group(job_.begin.groups.tp), job_.wait);
  } else {
    sums_ = std::make_unique<models::WholeWeights>();
  }
  if (job_.begin.request.step_cache != StepCacheRule::none) cache_ = make_cache();
  if (job_.graphs && why_plain().empty())
    graphs_ = std::make_unique<BlockGraphs>(attention_->store());
}

std::string DitJob::why_plain() const {
  const auto& groups = job_.begin.groups;
  if (job_.begin.request.offload == OffloadChoice::blocks)
    return "blocks are read anew in every step, to wherever there is room (offload)";
  if (groups.ulysses != 0 || groups.ring != 0) return "sequence ranks exchange in every block";
  if (groups.tp != 0) return "tensor-parallel ranks add up in every block";
  return kernels::GraphCache::why_plain(device_);
}

std::string DitJob::state(int step) const {
  const auto* store = attention_->store();
  return store ? store->history(store->shape().blocks, step) : std::string();
}

GraphUse DitJob::graph_use() const {
  if (!graphs_) return {0, 0, why_plain()};
  const auto counts = graphs_->counts();
  return {former_graphs_.recorded + counts.recorded, former_graphs_.replayed + counts.replayed,
          former_graphs_.why_plain.empty() ? graphs_->failure() : former_graphs_.why_plain};
}

std::unique_ptr<SequenceAttention> DitJob::make_attention() const {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  const auto& groups = begin.groups;
  std::optional<HeadExchange> exchange;
  if (groups.ulysses != 0)
    exchange.emplace(job_.group(groups.ulysses), transformer().heads(), job_.wait);
  const bool step_before = request.method == Method::distrifusion;
  const bool naive = request.exchange == PatchExchange::naive;
  std::unique_ptr<models::KvStore> store;
  if (request.num_pipeline_patch > 1 && !naive) {
    using Freshness = models::KvStore::Freshness;
    store = std::make_unique<models::KvStore>(
        models::KvStore::Shape{
            .blocks = transformer().attentions(),
            .batch = job_.images * job_.branches,
            .tokens =
                text_tokens() + job_.size.latent_height / transformer().patch_size() * columns_,
            .heads = exchange ? exchange->own_heads() : transformer().heads(),
            .head_dim = transformer().head_dim(),
            .freshness = step_before ? Freshness::step_before : Freshness::newest,
            .predicts = request.kv == KvUse::predict,
            .given = job_.size.given_rows() / transformer().patch_size() * columns_},
        transformer().dtype(), device_);
  }
  RingAttention::Links links{naive ? nullptr : job_.group(groups.ring),
                             job_.group(step_before ? groups.heads : groups.stage), job_.wait};
  return std::make_unique<SequenceAttention>(
      SequenceAttention::Place{begin.ring.rank, begin.ring.degree, begin.ulysses.rank,
                               begin.ulysses.degree},
      std::move(exchange), RingAttention(begin.ring.rank, std::move(store), std::move(links)));
}

std::int64_t DitJob::text_tokens() const {
  auto tokens = facts_.joint_tokens(job_.prompt_tokens);
  for (const auto& picture : job_.references)
    tokens += models::picture_tokens(picture, transformer().patch_size());
  return tokens;
}

std::int64_t DitJob::text_alone() const {
  return facts_.joint_tokens(job_.prompt_tokens) -
         facts_.picture_fill(job_.size.latent_height / transformer().patch_size() * columns_);
}

spec::TextShare DitJob::text_of(int patch, int sequence_rank) const {
  return spec::text_share(text_tokens(), patch,
                          {sequence_rank, job_.begin.ring.degree, job_.begin.ulysses.degree},
                          job_.begin.request.method == Method::distrifusion);
}

void DitJob::turn_to(int step) {
  const bool turns = is_of_second(step) != second_;
  if (turns) second_ = !second_;
  // Another job may have put its own transformer in this one's place.
  const auto& own = transformer();
  if (!turns && network_.loads() == loads_) return;
  loads_ = network_.loads();
  if (turns) caption_ = own.cache_caption(own_text(), text_mask_);
  conditions_.clear();
  if (!graphs_) return;
  former_graphs_ = graph_use();
  graphs_ = std::make_unique<BlockGraphs>(attention_->store());
}

models::Caption DitJob::own_text() const {
  if (!network_.spec().second_transformer) return text_;
  const auto width = text_.states.size(2) / 2;
  return {text_.states.narrow(2, second_ ? width : 0, width), text_.pooled, {}, text_.seen};
}

void DitJob::keep_text(const models::Caption& text, const at::Tensor& mask) {
  text_ = text;
  text_mask_ = mask;
  caption_ = transformer().cache_caption(own_text(), mask);
  if (!network_.spec().second_transformer) text_ = {};
  if (!facts_.joint || facts_.pads_text) return;
  std::vector<models::TokenRun> padding;
  const auto lengths = mask.sum(1).cpu();
  for (std::int64_t item = 0; item < lengths.size(0); ++item)
    padding.push_back({facts_.filled_up(lengths[item].item<std::int64_t>()), text_alone()});
  attention_->set_padding(std::move(padding));
}

std::shared_ptr<const models::CaptionCache> DitJob::caption_of(wire::RowRange items) const {
  if (!caption_) throw std::logic_error("[actor] a micro-step came before the text");
  if (items.end - items.begin == caption_->batch()) return caption_;
  return caption_->items(items.begin, items.end);
}

std::vector<std::int64_t> DitJob::input_shape(const NetworkStep& step) const {
  const auto tokens =
      own_text(step.place.patch).size() + count_rows(own_rows(step.place.patch)) * columns_;
  return {step.items.end - step.items.begin, tokens, transformer().input_width()};
}

at::Tensor DitJob::embed(const NetworkStep& step, const at::Tensor& latents) {
  turn_to(step.place.step);
  std::vector<at::Tensor> tokens;
  if (const auto text = own_text(step.place.patch); text.size() > 0)
    tokens.push_back(transformer().embed_text(*caption_of(step.items), text.begin, text.end));
  std::int64_t offset = 0;
  for (const auto& run : own_rows(step.place.patch)) {
    const auto rows = (run.end - run.begin) * transformer().patch_size();
    tokens.push_back(transformer().embed(latents.slice(2, offset, offset + rows), job_.size, run));
    offset += rows;
  }
  if (tokens.size() == 1) return tokens.front();
  if (!tokens.empty()) return at::cat(tokens, 1);
  return at::empty({step.items.end - step.items.begin, 0, transformer().hidden_width()},
                   at::TensorOptions().dtype(transformer().dtype()).device(device_));
}

at::Tensor DitJob::run(const NetworkStep& step, at::Tensor hidden) {
  turn_to(step.place.step);
  const auto& place = step.place;
  if (step.refill && place.part == 0) attention_->forget();
  if (cache_) return cache_->run(step, std::move(hidden), own_text(place.patch).size());
  return run_blocks(step, std::move(hidden), step.items, transformer().part().blocks, {true});
}

const models::StepCondition& DitJob::condition(int step, wire::RowRange items) {
  if (!graphs_)
    std::erase_if(conditions_, [&](const auto& kept) { return kept.second.step != step; });
  auto& kept = conditions_[{items.begin, items.end}];
  if (kept.step == step) return *kept.condition;
  auto fresh = transformer().condition(
      {job_.sampler.timestep(step), job_.begin.request.guidance_scale.value(), job_.size},
      *caption_of(items));
  if (kept.condition) {
    kept.condition->take(*fresh);
  } else {
    kept.condition = std::move(fresh);
  }
  kept.step = step;
  return *kept.condition;
}

models::CallTokens DitJob::call_tokens(int patch) const {
  const auto text = own_text(patch);
  return {job_.size, own_rows(patch), text.begin, text.end};
}

at::Tensor DitJob::run_blocks(const NetworkStep& step, at::Tensor hidden, wire::RowRange items,
                              models::BlockRange blocks, const StepCache::Columns& columns) {
  const auto& place = step.place;
  const auto column_of = [&](int rank) {
    return columns.size() == 1 ? 0 : rank / job_.begin.ulysses.degree;
  };
  std::vector<models::TokenRuns> tokens;
  for (int rank = 0; rank < sequence_degree(job_.begin); ++rank) {
    const auto text = text_of(place.patch, rank);
    const auto rows = rows_of(job_.begin.micro_steps, place.patch, rank);
    tokens.push_back(columns[column_of(rank)]
                         ? tokens_of(rows, columns_, text_tokens(), {text.begin, text.end})
                         : models::TokenRuns{});
  }
  attention_->begin(tokens, place.step, place.patch < 0, step.last, items.begin, text_alone());
  auto call = call_tokens(place.patch);
  if (!columns[column_of(sequence_rank(job_.begin))]) {
    call = {job_.size, {}, 0, 0};
    const auto& part = transformer().part().blocks;
    const auto width = facts_.edge_width(part.begin, part.end, blocks.begin);
    hidden = at::empty({items.end - items.begin, 0, width},
                       at::TensorOptions().dtype(transformer().dtype()).device(device_));
  }
  call.blocks = blocks;
  const auto& of_step = condition(place.step, items);
  const auto caption = caption_of(items);
  const auto compute = [&](at::Tensor given, LayerWatch& layers) {
    LiveAttention attention(*attention_, [&](int slot, const at::Tensor& qkv) {
      job_.tick();
      watch(layers, slot, qkv);
    });
    return transformer().run_blocks(std::move(given), call, of_step, *caption, attention, *sums_);
  };
  if (!graphs_ || hidden.numel() == 0) return compute(std::move(hidden), job_.layers);
  job_.tick();
  std::string what;
  for (const int part : {place.patch, items.begin, items.end, blocks.begin, blocks.end})
    what.append(std::to_string(part)).append(" ");
  const models::BlockRange slots{static_cast<int>(facts_.attentions_before(blocks.begin)),
                                 static_cast<int>(facts_.attentions_before(blocks.end))};
  return graphs_->run({std::move(what), place.step, slots}, hidden, job_.layers, compute);
}

void DitJob::watch(LayerWatch& layers, int slot, const at::Tensor& qkv) const {
  if (qkv.numel() == 0) return;
  int block = transformer().part().blocks.begin;
  while (facts_.attentions_before(block + 1) <= slot)
    ++block;
  // Blocks normalize a token before they project it: one channel tells of all.
  const auto channel = qkv.select(4, 0).select(3, 0).select(2, 2);
  layers.see("block " + std::to_string(block), channel);
}

at::Tensor DitJob::project(const NetworkStep& step, const at::Tensor& hidden) {
  std::vector<at::Tensor> parts;
  std::int64_t offset = own_text(step.place.patch).size();
  for (const auto& run : own_rows(step.place.patch)) {
    const auto count = (run.end - run.begin) * columns_;
    const auto part = hidden.slice(1, offset, offset + count);
    parts.push_back(transformer()
                        .project(part, condition(step.place.step, step.items), job_.size, run)
                        .to(at::kFloat));
    offset += count;
  }
  if (parts.size() == 1) return parts.front();
  if (!parts.empty()) return at::cat(parts, 2);
  return at::empty({job_.images * job_.branches, facts_.in_channels, 0, job_.size.latent_width},
                   at::TensorOptions().dtype(at::kFloat).device(device_));
}

std::int64_t DitJob::bytes() const {
  const auto text = text_.states.defined() ? static_cast<std::int64_t>(text_.states.nbytes()) : 0;
  return attention_->bytes() + text + (caption_ ? caption_->bytes() : 0) +
         (cache_ ? cache_->bytes() : 0);
}

std::vector<std::pair<std::string, at::Tensor>> DitJob::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> named;
  if (const auto* store = attention_->store()) {
    for (int block = store->shape().blocks.begin; block < store->shape().blocks.end; ++block) {
      const auto kv = store->newest(block);
      named.emplace_back("keys " + std::to_string(block), kv.select(2, 0));
      named.emplace_back("values " + std::to_string(block), kv.select(2, 1));
    }
  }
  return named;
}

std::unique_ptr<StepCache> DitJob::make_cache() {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  const bool side_by_side = request.method == Method::distrifusion;
  const auto micro_steps = static_cast<std::int64_t>(begin.micro_steps.size());
  StepCache::Shape shape{.blocks = transformer().part().blocks,
                         .items = job_.images * job_.branches,
                         .width = transformer().hidden_width(),
                         .edge = transformer().output_width(),
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
                shape.watches_block ? std::vector<double>{} : polynomial_of(network_.spec()),
                shape.items, micro_steps * shape.columns);
  StepCache::Calls calls{
      .run =
          [this](const NetworkStep& step, at::Tensor hidden, wire::RowRange items,
                 models::BlockRange blocks, const StepCache::Columns& columns) {
            return run_blocks(step, std::move(hidden), items, blocks, columns);
          },
      .signal =
          [this](const NetworkStep& step, const at::Tensor& hidden) {
            return transformer().step_signal(hidden, call_tokens(step.place.patch),
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
