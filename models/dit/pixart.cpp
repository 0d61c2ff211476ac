#include "models/dit/pixart.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

/// Value that diffusers adds to the scores of a token that is masked out.
constexpr double kMaskedBias = -10000.0;

class PixArtStep final : public StageStep {
 public:
  explicit PixArtStep(PixArtCondition::Values given) : values(std::move(given)) {
    batch = values.embedded.size(0);
  }
  std::vector<at::Tensor> tensors() const override { return {values.modulation, values.embedded}; }
  PixArtCondition::Values values;
};

class PixArtCaption : public CaptionCache {
 public:
  int64_t bytes() const override {
    int64_t total = 0;
    for (const CaptionKv& block : blocks)
      total += block.bytes();
    return total;
  }
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<PixArtCaption>();
    some->items_ = end - begin;
    for (const CaptionKv& block : blocks)
      some->blocks.push_back(block.items(begin, end));
    return some;
  }
  int64_t batch() const override { return items_; }
  int64_t items_ = 0;
  std::vector<CaptionKv> blocks;
};

}  // namespace

at::Tensor axis_positions(int64_t count, int64_t base, double interpolation, int64_t width) {
  const double stretch = static_cast<double>(count) / static_cast<double>(base);
  const at::Tensor position =
      at::arange(count, at::TensorOptions().dtype(at::kFloat)).div(stretch).div(interpolation);
  const at::Tensor exponent = at::arange(width / 2, at::TensorOptions().dtype(at::kDouble))
                                  .div(static_cast<double>(width) / 2.0);
  const at::Tensor frequency = at::reciprocal(at::pow(10000.0, exponent));
  const at::Tensor angle = position.to(at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  return at::cat({at::sin(angle), at::cos(angle)}, 1).to(at::kFloat);
}

PixArtCondition::PixArtCondition(const spec::PixArtSpec& spec, const WeightLoader& weights)
    : width_(spec.inner_dim()), sizes_(spec.use_additional_conditions) {
  const std::string prefix = "adaln_single.emb.";
  const auto load = [&](const char* name, int64_t width) {
    return SiluMlp(weights, prefix + name, kSineFeatures, width, width);
  };
  timestep_ = load("timestep_embedder", width_);
  if (sizes_) {
    resolution_ = load("resolution_embedder", spec.condition_dim());
    aspect_ratio_ = load("aspect_ratio_embedder", spec.condition_dim());
  }
  modulation_ = weights.linear("adaln_single.linear", width_, 6 * width_);
}

PixArtCondition::Values PixArtCondition::operator()(double timestep, int64_t batch, int64_t height,
                                                    int64_t width, at::ScalarType dtype,
                                                    at::Device device) const {
  const auto features = [&](const at::Tensor& values) {
    return sine_features(values).to(device, dtype);
  };
  const auto floats = [](std::initializer_list<double> values) {
    return at::tensor(std::vector<double>(values)).to(at::kFloat);
  };
  at::Tensor embedded = timestep_(features(floats({timestep})));
  if (sizes_) {
    const double pixels_high = static_cast<double>(height),
                 pixels_wide = static_cast<double>(width);
    const at::Tensor resolution = floats({pixels_high, pixels_wide}).to(dtype);
    const at::Tensor aspect_ratio = floats({pixels_high / pixels_wide}).to(dtype);
    embedded = embedded + at::cat({resolution_(features(resolution)).reshape({1, -1}),
                                   aspect_ratio_(features(aspect_ratio)).reshape({1, -1})},
                                  1);
  }
  const at::Tensor modulation = modulation_(at::silu(embedded)).view({1, 6, width_});
  return {modulation.expand({batch, 6, width_}), embedded.expand({batch, width_})};
}

int64_t PixArtCondition::bytes() const {
  return timestep_.bytes() + resolution_.bytes() + aspect_ratio_.bytes() + modulation_.bytes();
}

PixArtEmbedding::PixArtEmbedding(const spec::PixArtSpec& spec, const WeightLoader& weights)
    : spec_(spec) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const at::Tensor kernel =
      weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
  patch_ =
      kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width}));
  caption_first_ = weights.linear("caption_projection.linear_1", spec.caption_channels, width);
  caption_second_ = weights.linear("caption_projection.linear_2", width, width);
}

at::Tensor PixArtEmbedding::caption(const at::Tensor& states) const {
  return caption_second_(caption_first_.gelu(states));
}

at::Tensor PixArtEmbedding::tokens(const at::Tensor& latents, PictureSize size,
                                   TokenRows rows) const {
  const int64_t patch = spec_.patch_size, width = spec_.inner_dim(), half = width / 2;
  const int64_t batch = latents.size(0), count = rows.end - rows.begin;
  const int64_t columns = size.latent_width / patch;
  at::Tensor hidden =
      patch_(tokens_of_latents(latents, patch)).view({batch, count, columns, width});

  const int64_t base = spec_.sample_size / patch;
  const auto positions = [&](int64_t number) {
    return axis_positions(number, base, spec_.interpolation_scale, half).to(latents.device());
  };
  const at::Tensor across = positions(columns).view({1, 1, columns, half});
  const at::Tensor down = positions(size.latent_height / patch)
                              .slice(0, rows.begin, rows.end)
                              .view({1, count, 1, half});
  const at::Tensor wide = hidden.to(at::kFloat);
  wide.slice(3, 0, half).add_(across);
  wide.slice(3, half).add_(down);
  return wide.to(hidden.scalar_type()).view({batch, count * columns, width});
}

int64_t PixArtEmbedding::bytes() const {
  return patch_.bytes() + caption_first_.bytes() + caption_second_.bytes();
}

CaptionTokens::CaptionTokens(const at::Tensor& projected, const at::Tensor& mask) {
  const at::Tensor keep = mask.to(at::kCPU, at::kBool);
  const int64_t batch = projected.size(0);
  for (int64_t first = 0; first < batch;) {
    const at::Tensor row = keep[first];
    int64_t end = first + 1;
    while (end < batch && at::equal(row, keep[end]))
      ++end;
    Group group{first, end - first, projected.slice(0, first, end), std::nullopt};
    const at::Tensor kept = at::nonzero(row).view({-1});
    if (kept.numel() == 0) {
      group.bias = at::full({end - first, projected.size(1)}, kMaskedBias, projected.options());
    } else if (kept.numel() < row.numel()) {
      group.states = group.states.index_select(1, kept.to(projected.device()));
    }
    groups_.push_back(std::move(group));
    first = end;
  }
}

CaptionKv CaptionKv::items(int64_t begin, int64_t end) const {
  CaptionKv some;
  int64_t first = 0;
  for (const Group& group : groups) {
    const int64_t count = group.kv.size(0);
    const int64_t from = std::max(begin, first) - first, to = std::min(end, first + count) - first;
    if (from < to) {
      std::optional<at::Tensor> bias;
      if (group.bias) bias = group.bias->slice(0, from, to);
      some.groups.push_back({group.kv.slice(0, from, to), bias});
    }
    first += count;
  }
  return some;
}

int64_t CaptionKv::bytes() const {
  int64_t total = 0;
  for (const Group& group : groups)
    total += static_cast<int64_t>(group.kv.nbytes());
  return total;
}

PixArtBlock::PixArtBlock(const spec::PixArtSpec& spec, int index, WeightShard shard,
                         const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim),
      eps_(spec.norm_eps) {
  const int64_t width = spec.inner_dim(), wide = 4 * width;
  const bool bias = spec.attention_bias;
  const std::string prefix = spec::pixart_block_prefix(index);
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const bool first = shard.rank == 0;  // the sum over shards has each bias once
  table_ = weights.copy(prefix + "scale_shift_table", {6, width});
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, bias, own);
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  cross_q_ = weights.joined({cross + "to_q"}, width, width, bias, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, width, width, bias, own);
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  widen_ = weights.joined({prefix + "ff.net.0.proj"}, width, wide, true, columns);
  narrow_ = weights.narrow(prefix + "ff.net.2", wide, width, columns, first);
}

CaptionKv PixArtBlock::caption(const CaptionTokens& tokens) const {
  CaptionKv made;
  for (const CaptionTokens::Group& group : tokens.groups()) {
    const at::Tensor kv = cross_kv_(group.states);
    made.groups.push_back(
        {kv.view({group.count, group.states.size(1), 2, heads_, head_dim_}), group.bias});
  }
  return made;
}

at::Tensor PixArtBlock::cross(const at::Tensor& hidden, const CaptionKv& caption) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  const at::Tensor q = cross_q_(hidden).view({batch, tokens, heads_, head_dim_});
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const CaptionKv::Group& group : caption.groups) {
    const int64_t count = group.kv.size(0);
    parts.push_back(kernels::attention(q.slice(0, first, first + count), group.kv.select(2, 0),
                                       group.kv.select(2, 1), scale, group.bias));
    first += count;
  }
  const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts);
  return all.view({batch, tokens, heads_ * head_dim_});
}

at::Tensor PixArtBlock::self(const at::Tensor& normal, AttentionPort& attention) const {
  const int64_t batch = normal.size(0), tokens = normal.size(1);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  return attention.attend(index_, qkv).view({batch, tokens, heads_ * head_dim_});
}

void PixArtBlock::run(at::Tensor& hidden, const at::Tensor& modulation, const CaptionKv& caption,
                      AttentionPort& attention, TensorParallelPort& sums) const {
  const at::Tensor factors = table_.unsqueeze(0) + modulation;
  const auto factor = [&factors](int64_t index) { return factors.select(1, index); };

  at::Tensor normal = kernels::norm_modulate(hidden, factor(kScale), factor(kShift), eps_);
  add_product(hidden, self_out_, self(normal, attention), factor(kGate), sharded_, sums);
  add_product(hidden, cross_out_, cross(hidden, caption), std::nullopt, sharded_, sums);
  normal = kernels::norm_modulate(hidden, factor(kScaleForward), factor(kShiftForward), eps_);
  add_product(hidden, narrow_, widen_.gelu(normal), factor(kGateForward), sharded_, sums);
}

at::Tensor PixArtBlock::modulated(const at::Tensor& hidden, const at::Tensor& modulation) const {
  const at::Tensor factors = table_.unsqueeze(0) + modulation;
  return kernels::norm_modulate(hidden, factors.select(1, kScale), factors.select(1, kShift), eps_);
}

void PixArtBlock::list_tensors(std::vector<at::Tensor*>& all) {
  all.push_back(&table_);
  for (kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_})
    linear->list_tensors(all);
}

PixArt::PixArt(const spec::PixArtSpec& spec, int64_t pixels_per_latent, const StagePart& part,
               const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : TransformerStage("pixart", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      pixels_per_latent_(pixels_per_latent),
      condition_(spec, weights) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  if (part.embeds) embedding_.emplace(spec, weights);
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return PixArtBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    const int64_t cells = patch * patch, channels = spec.out_channels;
    const auto noise = [&](const at::Tensor& rows) {
      return rows.reshape({cells, channels, -1})
          .slice(1, 0, spec.in_channels)
          .reshape({cells * spec.in_channels, -1});
    };
    last_table_ = weights.copy("scale_shift_table", {2, width});
    last_ = kernels::Linear(noise(weights.whole("proj_out.weight", {cells * channels, width})),
                            noise(weights.get("proj_out.bias", {cells * channels})).view({-1}));
  }
}

int64_t PixArt::bytes() const {
  int64_t total = condition_.bytes() + (embedding_ ? embedding_->bytes() : 0) + last_.bytes();
  if (last_table_.defined()) total += static_cast<int64_t>(last_table_.nbytes());
  return total + blocks_.bytes();
}

Caption PixArt::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.caption_channels) {
    refuse_shape(family_, "the caption's states", states, {-1, -1, spec_.caption_channels});
  }
  return {embedding_->caption(on_device(states)), {}};
}

std::unique_ptr<CaptionCache> PixArt::cache_of(const Caption& caption,
                                               const at::Tensor& mask) const {
  const CaptionTokens tokens(on_device(caption.states), mask);
  auto cache = std::make_unique<PixArtCaption>();
  cache->items_ = caption.states.size(0);
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].caption(tokens));
  return cache;
}

std::unique_ptr<StepCondition> PixArt::condition(const StepInput& input,
                                                 const CaptionCache& caption) const {
  return std::make_unique<PixArtStep>(
      condition_(input.timestep, caption.batch(), input.size.latent_height * pixels_per_latent_,
                 input.size.latent_width * pixels_per_latent_, compute_, device_));
}

at::Tensor PixArt::tokens_of(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  return embedding_->tokens(latents, size, rows);
}

at::Tensor PixArt::compute(at::Tensor hidden, const StepCondition& condition,
                           const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<PixArtStep>(condition);
  const auto& kept = text_of<PixArtCaption>(caption);
  require_blocks(kept.blocks.size());
  hidden = hidden.contiguous();
  for (int i = call.begin; i < call.end; ++i)
    blocks_[i].run(hidden, step.values.modulation, kept.blocks[i], call.attention, call.sums);
  return hidden;
}

at::Tensor PixArt::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  return blocks_[0].modulated(picture, step_of<PixArtStep>(condition).values.modulation);
}

at::Tensor PixArt::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                 int64_t columns) const {
  const at::Tensor factors =
      last_table_.unsqueeze(0) + step_of<PixArtStep>(condition).values.embedded.unsqueeze(1);
  const at::Tensor normal =
      kernels::norm_modulate(hidden, factors.select(1, 1), factors.select(1, 0), kEps);
  return latents_of_tokens(last_(normal), columns, patch_size(), TokenOrder::pixels_first);
}

}  // namespace troupe::models
