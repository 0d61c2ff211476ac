#include "models/dit/zimage.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"
#include "models/dit/joint_block.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {
namespace {

/// Places of what modulates a block.
enum { kScaleAttention, kGateAttention, kScaleFeedForward, kGateFeedForward };

struct ZImageStep final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = blocks;
    all.push_back(embedded);
    all.push_back(last);
    return all;
  }
  at::Tensor of(const ZImageBlock& block, size_t index) const {
    return blocks.empty() ? block.modulation(embedded) : blocks[index];
  }

  at::Tensor embedded;  // where blocks are streamed: each makes its modulation of it
  std::vector<at::Tensor> blocks;
  at::Tensor last;     // [1, D]
  RotaryAngles text;   // of the text's tokens, and of those that fill up the picture's
  int64_t filled = 0;  // number of tokens that fill up the picture's
  std::vector<ItemAngles> picture;
};

/// Epsilon of the norms of queries and keys. Source: ZImageTransformerBlock.
constexpr double kHeadEps = 1e-5;

/// Places (at + 1, 0, 0) for at from 0 on, as a text's tokens have them.
at::Tensor places_of_text(int64_t tokens) {
  at::Tensor places = at::zeros({tokens, 3}, at::kDouble);
  places.select(1, 0).copy_(at::arange(1, tokens + 1, at::kDouble));
  return places;
}

/// Places (depth, row, column) of a picture's tokens.
at::Tensor places_of_picture(int64_t depth, int64_t rows, int64_t columns) {
  at::Tensor places = at::full({rows, columns, 3}, static_cast<double>(depth), at::kDouble);
  places.select(2, 1).copy_(at::arange(rows, at::kDouble).unsqueeze(1).expand({rows, columns}));
  places.select(2, 2).copy_(at::arange(columns, at::kDouble).unsqueeze(0).expand({rows, columns}));
  return places.view({rows * columns, 3});
}

/// Angles of a call's tokens, text tokens [text_begin, text_end) first.
std::vector<ItemAngles> angles_of_call(const ZImageStep& step, const CallTokens& tokens,
                                       int64_t text_begin, int64_t columns) {
  std::vector<ItemAngles> all;
  for (const auto& [begin, end, turns] : step.picture) {
    const auto own = rotary_angles_of_rows(turns, tokens.rows, columns);
    const auto with_text = [&](const at::Tensor& text, const at::Tensor& picture) {
      return at::cat({text.slice(0, text_begin, tokens.text_end), picture});
    };
    all.push_back({begin,
                   end,
                   {with_text(step.text.cosine, own.cosine), with_text(step.text.sine, own.sine)}});
  }
  return all;
}

/// The pipeline turns time round and divides it by 1000, the model multiplies it; in float32.
double as_zimage_sees(double timestep, double scale) {
  return (1000.0F - static_cast<float>(timestep)) / 1000.0F * static_cast<float>(scale);
}

}  // namespace

ZImageBlock::ZImageBlock(const spec::ZImageSpec& spec, const std::string& prefix, bool modulated,
                         WeightShard shard, const WeightLoader& weights)
    : sharded_(shard.degree > 1),
      width_(spec.dim),
      heads_(shard.size(spec.n_heads)),
      head_dim_(spec.head_dim()),
      eps_(spec.norm_eps) {
  const std::string attention = prefix + "attention.", forward = prefix + "feed_forward.";
  const int64_t heads = spec.n_heads, wide = spec.feed_forward();
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  if (modulated) {
    modulate_ = weights.linear(prefix + "adaLN_modulation.0", spec.condition_width(), 4 * width_);
  }
  qkv_ = weights.joined({attention + "to_q", attention + "to_k", attention + "to_v"}, width_,
                        width_, false, own);
  out_ = weights.narrow(attention + "to_out.0", width_, width_, own, false, false);
  widen_ = weights.joined({forward + "w1", forward + "w3"}, width_, wide, false, columns);
  narrow_ = weights.narrow(forward + "w2", wide, width_, columns, false, false);
  norm_q_ = weights.copy(attention + "norm_q.weight", {head_dim_});
  norm_k_ = weights.copy(attention + "norm_k.weight", {head_dim_});
  const auto norm = [&](const char* name) {
    return weights.copy(prefix + name + ".weight", {width_});
  };
  before_attention_ = norm("attention_norm1");
  after_attention_ = norm("attention_norm2");
  before_forward_ = norm("ffn_norm1");
  after_forward_ = norm("ffn_norm2");
}

at::Tensor ZImageBlock::modulation(const at::Tensor& embedded) const {
  const at::Tensor all = modulate_(embedded).view({embedded.size(0), 2, 2, width_});
  return at::stack({all.select(2, 0) + 1, at::tanh(all.select(2, 1))}, 2)
      .view({embedded.size(0), 4, width_});
}

at::Tensor ZImageBlock::normed(const at::Tensor& x, const at::Tensor& weight) const {
  return at::rms_norm(x, {width_}, weight, eps_);
}

void ZImageBlock::add(at::Tensor& hidden, const kernels::Linear& product, const at::Tensor& x,
                      const at::Tensor& norm, const at::Tensor& gate,
                      TensorParallelPort& sums) const {
  at::Tensor out = at::zeros_like(hidden);
  add_product(out, product, x, std::nullopt, sharded_, sums);
  out = normed(out, norm);
  if (gate.defined()) out.mul_(gate.unsqueeze(1));
  hidden.add_(out);
}

at::Tensor ZImageBlock::attention_input(const at::Tensor& hidden,
                                        const at::Tensor& modulation) const {
  at::Tensor normal = normed(hidden, before_attention_);
  if (modulation.defined()) normal.mul_(modulation.select(1, kScaleAttention).unsqueeze(1));
  return normal;
}

void ZImageBlock::run(at::Tensor& hidden, const at::Tensor& modulation,
                      const std::vector<ItemAngles>& angles, const Attending& attention,
                      TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto gate = [&](int place) {
    return modulation.defined() ? modulation.select(1, place) : at::Tensor();
  };
  const at::Tensor qkv =
      qkv_(attention_input(hidden, modulation)).view({batch, tokens, 3, heads_, head_dim_});
  for (const auto& [begin, end, turns] : angles) {
    at::Tensor q = qkv.slice(0, begin, end).select(2, 0), k = qkv.slice(0, begin, end).select(2, 1);
    kernels::norm_rotate(q, norm_q_, turns.cosine, turns.sine, kHeadEps);
    kernels::norm_rotate(k, norm_k_, turns.cosine, turns.sine, kHeadEps);
  }
  const at::Tensor attended = attention.port.attend(attention.slot, qkv, attention.to)
                                  .view({batch, tokens, heads_ * head_dim_});
  add(hidden, out_, attended, after_attention_, gate(kGateAttention), sums);
  at::Tensor normal = normed(hidden, before_forward_);
  if (modulation.defined()) normal.mul_(gate(kScaleFeedForward).unsqueeze(1));
  add(hidden, narrow_, silu_gated(widen_(normal)), after_forward_, gate(kGateFeedForward), sums);
}

void ZImageBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&modulate_, &qkv_, &out_, &widen_, &narrow_})
    linear->list_tensors(all);
  all.insert(all.end(), {&norm_q_, &norm_k_, &before_attention_, &after_attention_,
                         &before_forward_, &after_forward_});
}

int64_t ZImageBlock::bytes() const {
  int64_t total = 0;
  for (const auto* linear : {&modulate_, &qkv_, &out_, &widen_, &narrow_})
    total += linear->bytes();
  for (const auto* norm : {&norm_q_, &norm_k_, &before_attention_, &after_attention_,
                           &before_forward_, &after_forward_})
    total += static_cast<int64_t>(norm->nbytes());
  return total;
}

ZImage::ZImage(const spec::ZImageSpec& spec, const StagePart& part, const WeightLoader& weights,
               at::ScalarType compute, at::Device device)
    : TransformerStage("zimage", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_first_(
          weights.linear("t_embedder.mlp.0", spec::kTimeFrequencies, spec::kZImageTimeWidth)),
      time_second_(
          weights.linear("t_embedder.mlp.2", spec::kZImageTimeWidth, spec.condition_width())) {
  const int64_t width = spec.dim;
  const int64_t cells = spec::kZImagePatch * spec::kZImagePatch * spec.in_channels;
  if (part.embeds) {
    // The checkpoint has a token's pixels first, then each one's channels.
    const int64_t patch = spec::kZImagePatch;
    const at::Tensor of_patch = weights.whole("all_x_embedder.2-1.weight", {width, cells})
                                    .view({width, patch, patch, spec.in_channels})
                                    .permute({0, 3, 1, 2})
                                    .reshape({width, cells});
    embedding_ = {kernels::Linear(of_patch, weights.copy("all_x_embedder.2-1.bias", {width})),
                  weights.linear("cap_embedder.1", spec.cap_feat_dim, width),
                  weights.copy("cap_embedder.0.weight", {spec.cap_feat_dim}),
                  weights.copy("x_pad_token", {1, width}),
                  weights.copy("cap_pad_token", {1, width}),
                  {}};
    WeightLoader as_computed = weights.detached();
    as_computed.type = kernels::WeightType::as_computed;
    for (int64_t block = 0; block < spec.n_refiner_layers; ++block) {
      embedding_->refine_text.emplace_back(spec, spec::zimage_text_prefix(block), false,
                                           WeightShard{}, as_computed);
    }
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    const std::string prefix = spec::zimage_block_prefix(spec, block);
    blocks_.add(weights, [spec, prefix, shard = part.shard](const WeightLoader& from) {
      return ZImageBlock(spec, prefix, true, shard, from);
    });
  }
  if (part.projects) {
    const std::string name = "all_final_layer.2-1.";
    ending_ = {weights.linear(name + "adaLN_modulation.1", spec.condition_width(), width),
               weights.linear(name + "linear", width, cells)};
  }
}

int64_t ZImage::bytes() const {
  int64_t total = time_first_.bytes() + time_second_.bytes() + blocks_.bytes();
  if (ending_) total += ending_->condition.bytes() + ending_->project.bytes();
  if (!embedding_) return total;
  const Embedding& first = *embedding_;
  total += first.patch.bytes() + first.text.bytes();
  for (const auto* tensor : {&first.text_norm, &first.picture_fill, &first.text_fill})
    total += static_cast<int64_t>(tensor->nbytes());
  for (const ZImageBlock& block : first.refine_text)
    total += block.bytes();
  return total;
}

Caption ZImage::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.cap_feat_dim)
    refuse_shape(family_, "the text's states", states, {-1, -1, spec_.cap_feat_dim});
  const Embedding& with = *embedding_;
  const at::Tensor all = with.text(
      at::rms_norm(on_device(states), {spec_.cap_feat_dim}, with.text_norm, spec_.norm_eps));
  const int64_t longest = facts_.filled_up(text[0].lengths.max().item<int64_t>());
  at::Tensor refined = at::zeros({all.size(0), longest, spec_.dim}, all.options());
  LocalAttention attention;
  WholeWeights whole;
  for (int64_t item = 0; item < all.size(0); ++item) {
    const int64_t own = text[0].lengths[item].item<int64_t>(), filled = facts_.filled_up(own);
    at::Tensor hidden = at::cat({all.slice(0, item, item + 1).slice(1, 0, own),
                                 with.text_fill.unsqueeze(0).expand({1, filled - own, -1})},
                                1);
    const std::vector<ItemAngles> angles{{0, 1, angles_of(places_of_text(filled))}};
    for (const ZImageBlock& block : with.refine_text)
      block.run(hidden, {}, angles, {attention, 0, Attend::everything}, whole);
    refined.slice(0, item, item + 1).slice(1, 0, filled).copy_(hidden);
  }
  return {refined, {}};
}

std::unique_ptr<CaptionCache> ZImage::cache_of(const Caption& caption,
                                               const at::Tensor& mask) const {
  const int64_t batch = caption.states.size(0);
  const at::Tensor counts = mask.sum(1).cpu();
  TextLengths lengths{mask.size(1), {}};
  for (int64_t item = 0; item < batch; ++item)
    lengths.of_items.push_back(facts_.filled_up(counts[item].item<int64_t>()));
  at::Tensor states;
  if (embedding_) {
    const auto fill =
        embedding_->picture_fill.unsqueeze(0).expand({batch, facts_.token_multiple - 1, spec_.dim});
    states = at::cat({caption.states, fill}, 1);
  }
  return std::make_unique<JointCaption>(batch, states, at::Tensor(), std::move(lengths));
}

RotaryAngles ZImage::angles_of(const at::Tensor& places) const {
  std::vector<at::Tensor> parts;
  for (int64_t axis = 0; axis < 3; ++axis) {
    const int64_t width = spec_.axes_dims[axis];
    const auto options = at::TensorOptions().dtype(at::kDouble);
    const at::Tensor frequency =
        at::pow(spec_.rope_theta, at::arange(0, width, 2, options) / width).reciprocal();
    parts.push_back(at::outer(places.select(1, axis), frequency).to(at::kFloat));
  }
  const at::Tensor angle = at::cat(parts, 1);
  return {at::cos(angle).to(device_), at::sin(angle).to(device_)};
}

std::unique_ptr<StepCondition> ZImage::condition(const StepInput& input,
                                                 const CaptionCache& caption) const {
  const auto& text = text_of<JointCaption>(caption);
  const auto time = at::full({1}, as_zimage_sees(input.timestep, spec_.t_scale), at::kFloat);
  const at::Tensor embedded = time_second_(at::silu(time_first_(on_device(sine_features(time)))));
  auto step = std::make_unique<ZImageStep>();
  step->batch = text.batch();
  if (blocks_.streamed()) step->embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->blocks.push_back(blocks_[i].modulation(embedded));
  if (ending_) step->last = ending_->condition(at::silu(embedded));
  const int64_t rows = input.size.latent_height / patch_size();
  const int64_t columns = input.size.latent_width / patch_size();
  const int64_t fill = facts_.token_multiple - 1;
  step->filled = facts_.picture_fill(rows * columns);
  step->text = angles_of(
      at::cat({places_of_text(text.lengths().tokens), at::zeros({fill, 3}, at::kDouble)}));
  const auto& lengths = text.lengths().of_items;
  for (int64_t begin = 0, end = 0; begin < text.batch(); begin = end) {
    while (end < text.batch() && lengths[end] == lengths[begin])
      ++end;
    step->picture.push_back(
        {begin, end, angles_of(places_of_picture(lengths[begin] + 1, rows, columns))});
  }
  return step;
}

at::Tensor ZImage::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor ZImage::compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache&,
                           const BlockCall& call) const {
  const auto& step = step_of<ZImageStep>(condition);
  const CallTokens& tokens = call.tokens;
  if (!step.embedded.defined()) require_blocks(step.blocks.size());
  const int64_t columns = tokens.size.latent_width / patch_size();
  const int first = part_.blocks.begin;
  const int refiners = std::max(static_cast<int>(spec_.n_refiner_layers) - first, 0);
  const auto run = [&](int i, at::Tensor& states, const std::vector<ItemAngles>& angles,
                       Attend to) {
    const ZImageBlock& block = blocks_[i];
    block.run(states, step.of(block, i), angles, {call.attention, first + i, to}, call.sums);
  };
  if (call.begin < std::min(call.end, refiners)) {
    const int64_t fill_begin = step.text.cosine.size(0) - step.filled;
    const int64_t picture = std::clamp(fill_begin, tokens.text_begin, tokens.text_end);
    TwoStreams streams(hidden, picture - tokens.text_begin);
    const auto angles = angles_of_call(step, tokens, picture, columns);
    for (int i = call.begin; i < std::min(call.end, refiners); ++i)
      run(i, streams.picture, angles, Attend::picture);
    hidden = streams.joined();
  }
  if (std::max(call.begin, refiners) >= call.end) return hidden;
  hidden = hidden.contiguous();
  const auto angles = angles_of_call(step, tokens, tokens.text_begin, columns);
  for (int i = std::max(call.begin, refiners); i < call.end; ++i)
    run(i, hidden, angles, Attend::everything);
  return hidden;
}

at::Tensor ZImage::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const auto& step = step_of<ZImageStep>(condition);
  return blocks_[0].attention_input(picture, step.of(blocks_[0], 0));
}

at::Tensor ZImage::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                 int64_t columns) const {
  const at::Tensor scale =
      step_of<ZImageStep>(condition).last.expand({hidden.size(0), hidden.size(2)});
  const at::Tensor normal =
      kernels::norm_modulate(hidden.contiguous(), scale, at::zeros_like(scale), kEps);
  return latents_of_tokens(ending_->project(normal), columns, patch_size(),
                           TokenOrder::pixels_first)
      .neg();
}

}  // namespace troupe::models
