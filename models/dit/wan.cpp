#include "models/dit/wan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

struct WanStep final : StageStep {
  std::vector<at::Tensor> tensors() const override { return {embedded, modulation}; }

  at::Tensor embedded;    // [B, D]
  at::Tensor modulation;  // [B, 6, D]
  at::Tensor given;       // the same of timestep 0, where a frame is given
  RotaryAngles turns;     // of all the video's tokens
};

/// Returns how many tokens of the rows are above row `end`. Runs come from above.
int64_t tokens_above(const std::vector<TokenRows>& rows, int64_t end, int64_t columns) {
  int64_t count = 0;
  for (const TokenRows& run : rows)
    count += std::max<int64_t>(std::min(run.end, end) - run.begin, 0);
  return count * columns;
}

/// A block's own table added to what modulates a call's tokens, of which the first ones may be
/// modulated in another way.
class WanFactors {
 public:
  WanFactors(const at::Tensor& table, const WanModulation& modulation, int64_t tokens)
      : given_tokens_(modulation.given_tokens < tokens ? modulation.given_tokens : 0),
        made_(table.unsqueeze(0) +
              (given_tokens_ < modulation.given_tokens ? modulation.given : modulation.made)) {
    if (given_tokens_ > 0) given_ = table.unsqueeze(0) + modulation.given;
  }

  at::Tensor norm(const at::Tensor& hidden, int64_t scale, int64_t shift, double eps) const {
    const auto of = [&](const at::Tensor& some, const at::Tensor& factors) {
      return kernels::norm_modulate(some, factors.select(1, scale), factors.select(1, shift), eps);
    };
    if (given_tokens_ == 0) return of(hidden, made_);
    return at::cat({of(first(hidden).contiguous(), given_), of(rest(hidden).contiguous(), made_)},
                   1);
  }
  /// Does the same as add_product.
  void add(at::Tensor& hidden, const kernels::Linear& product, const at::Tensor& x, int64_t gate,
           bool sharded, TensorParallelPort& sums) const {
    if (given_tokens_ == 0)
      return add_product(hidden, product, x, made_.select(1, gate), sharded, sums);
    at::Tensor whole = at::zeros_like(hidden);
    add_product(whole, product, x, std::nullopt, sharded, sums);
    first(hidden).add_(first(whole) * given_.narrow(1, gate, 1));
    rest(hidden).add_(rest(whole) * made_.narrow(1, gate, 1));
  }

 private:
  at::Tensor first(const at::Tensor& of) const { return of.slice(1, 0, given_tokens_); }
  at::Tensor rest(const at::Tensor& of) const { return of.slice(1, given_tokens_); }

  int64_t given_tokens_;  // 0 where all tokens are modulated in one way
  at::Tensor made_, given_;
};

class WanCaption final : public CaptionCache {
 public:
  int64_t bytes() const override {
    int64_t total = 0;
    for (const WanText& block : blocks)
      total += block.bytes();
    return total;
  }
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<WanCaption>();
    some->batch_ = end - begin;
    for (const WanText& block : blocks)
      some->blocks.push_back(block.items(begin, end));
    return some;
  }
  int64_t batch() const override { return batch_; }

  int64_t batch_ = 0;
  std::vector<WanText> blocks;
};

}  // namespace

NormAcrossHeads::NormAcrossHeads(const WeightLoader& weights, const std::string& name,
                                 int64_t width, Slice own, double eps)
    : weight_(weights.get(name + ".weight", {width}).slice(0, own.begin, own.end).clone()),
      width_(width),
      eps_(eps) {}

void NormAcrossHeads::whole(at::Tensor x) const {
  const int64_t batch = x.size(0), tokens = x.size(1);
  at::Tensor rows = x.view({batch, tokens, 1, width_});
  if (x.is_cpu()) return kernels::norm_rotate(rows, weight_, {}, {}, eps_);
  rows.copy_(at::rms_norm(rows.to(at::kFloat), {width_}, weight_.to(at::kFloat), eps_));
}

void NormAcrossHeads::part(at::Tensor x, const at::Tensor& squares) const {
  const at::Tensor factor = squares.div(static_cast<double>(width_)).add(eps_).rsqrt();
  x.copy_(x.to(at::kFloat) * factor.unsqueeze(2).unsqueeze(3) *
          weight_.view({x.size(2), x.size(3)}).to(at::kFloat));
}

at::Tensor NormAcrossHeads::squares(const at::Tensor& x) {
  return x.to(at::kFloat).square().sum({2, 3});
}

WanText WanText::items(int64_t begin, int64_t end) const {
  return {kv.slice(0, begin, end), squares.defined() ? squares.slice(0, begin, end) : squares, seen,
          seen_squares};
}

int64_t WanText::bytes() const {
  int64_t total = 0;
  for (const at::Tensor& part : {kv, squares, seen, seen_squares})
    total += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return total;
}

WanBlock::WanBlock(const spec::WanSpec& spec, int index, WeightShard shard,
                   const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim),
      eps_(spec.eps),
      sees_(spec.image_dim > 0) {
  const std::string prefix = "blocks." + std::to_string(index) + ".";
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(spec.ffn_dim), shard.end(spec.ffn_dim)};
  const bool first = shard.rank == 0;  // the sum over shards has each bias once
  const auto norm = [&](const std::string& name) {
    return NormAcrossHeads(weights, name, width, own, eps_);
  };
  table_ = weights.copy(prefix + "scale_shift_table", {1, 6, width}).view({6, width});
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, true, own);
  self_q_ = norm(self + "norm_q");
  self_k_ = norm(self + "norm_k");
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  if (spec.cross_attn_norm) {
    cross_scale_ = (weights.get(prefix + "norm2.weight", {width}) - 1).unsqueeze(0);
    cross_bias_ = weights.copy(prefix + "norm2.bias", {width}).unsqueeze(0);
  }
  cross_q_ = weights.joined({cross + "to_q"}, width, width, true, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, width, width, true, own);
  text_q_ = norm(cross + "norm_q");
  text_k_ = norm(cross + "norm_k");
  if (sees_) {
    seen_kv_ =
        weights.joined({cross + "add_k_proj", cross + "add_v_proj"}, width, width, true, own);
    seen_k_ = norm(cross + "norm_added_k");
  }
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  widen_ = weights.joined({prefix + "ffn.net.0.proj"}, width, spec.ffn_dim, true, columns);
  narrow_ = weights.narrow(prefix + "ffn.net.2", spec.ffn_dim, width, columns, first);
}

std::pair<at::Tensor, at::Tensor> WanBlock::keys_of(const at::Tensor& states,
                                                    const kernels::Linear& kv,
                                                    const NormAcrossHeads& norm) const {
  const at::Tensor both = kv(states).view({states.size(0), states.size(1), 2, heads_, head_dim_});
  const at::Tensor keys = both.select(2, 0);
  if (sharded_) return {both, NormAcrossHeads::squares(keys)};
  norm.whole(keys);
  return {both, {}};
}

WanText WanBlock::text(const at::Tensor& states, const at::Tensor& seen) const {
  WanText made;
  std::tie(made.kv, made.squares) = keys_of(states, cross_kv_, text_k_);
  if (sees_) std::tie(made.seen, made.seen_squares) = keys_of(seen, seen_kv_, seen_k_);
  return made;
}

at::Tensor WanBlock::self(const at::Tensor& normal, const RotaryAngles& turns,
                          AttentionPort& attention, TensorParallelPort& sums) const {
  const int64_t batch = normal.size(0), tokens = normal.size(1);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  if (sharded_) {
    at::Tensor squares =
        at::stack({NormAcrossHeads::squares(q), NormAcrossHeads::squares(k)}, 2).contiguous();
    sums.sum(squares);
    self_q_.part(q, squares.select(2, 0));
    self_k_.part(k, squares.select(2, 1));
  } else if (tokens > 0) {
    self_q_.whole(q);
    self_k_.whole(k);
  }
  kernels::norm_rotate(q, {}, turns.cosine, turns.sine, eps_);
  kernels::norm_rotate(k, {}, turns.cosine, turns.sine, eps_);
  return attention.attend(index_, qkv).view({batch, tokens, heads_ * head_dim_});
}

at::Tensor WanBlock::cross(const at::Tensor& hidden, const WanText& text,
                           TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto across = [batch = batch, width = hidden.size(2)](const at::Tensor& row) {
    return row.expand({batch, width});
  };
  const at::Tensor normal =
      cross_scale_.defined()
          ? kernels::norm_modulate(hidden, across(cross_scale_), across(cross_bias_), eps_)
          : hidden;
  at::Tensor q = cross_q_(normal).view({batch, tokens, heads_, head_dim_});
  at::Tensor keys = text.kv.select(2, 0), seen = sees_ ? text.seen.select(2, 0) : at::Tensor();
  if (sharded_) {
    const int64_t words = text.squares.size(1);
    std::vector<at::Tensor> all{NormAcrossHeads::squares(q), text.squares};
    if (sees_) all.push_back(text.seen_squares.expand({batch, -1}));
    at::Tensor squares = at::cat(all, 1).contiguous();
    sums.sum(squares);
    text_q_.part(q, squares.slice(1, 0, tokens));
    keys = keys.clone();
    text_k_.part(keys, squares.slice(1, tokens, tokens + words));
    if (sees_) {
      seen = seen.clone();
      seen_k_.part(seen, squares.slice(0, 0, 1).slice(1, tokens + words));
    }
  } else {
    text_q_.whole(q);
  }
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  at::Tensor found = kernels::attention(q, keys, text.kv.select(2, 1), scale);
  if (sees_) {
    const auto of_all = [&](const at::Tensor& of) { return of.expand({batch, -1, -1, -1}); };
    found.add_(kernels::attention(q, of_all(seen), of_all(text.seen.select(2, 1)), scale));
  }
  return found.view({batch, tokens, heads_ * head_dim_});
}

void WanBlock::run(at::Tensor& hidden, const WanModulation& modulation, const WanText& text,
                   const RotaryAngles& turns, AttentionPort& attention,
                   TensorParallelPort& sums) const {
  const WanFactors factors(table_, modulation, hidden.size(1));
  at::Tensor normal = factors.norm(hidden, kScale, kShift, eps_);
  factors.add(hidden, self_out_, self(normal, turns, attention, sums), kGate, sharded_, sums);
  if (hidden.size(1) == 0) return;  // the same on every shard
  add_product(hidden, cross_out_, cross(hidden, text, sums), std::nullopt, sharded_, sums);
  normal = factors.norm(hidden, kScaleForward, kShiftForward, eps_);
  factors.add(hidden, narrow_, widen_.gelu(normal), kGateForward, sharded_, sums);
}

void NormAcrossHeads::list_tensors(std::vector<at::Tensor*>& all) {
  all.push_back(&weight_);
}

void WanBlock::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&table_, &cross_scale_, &cross_bias_});
  for (kernels::Linear* linear :
       {&qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_})
    linear->list_tensors(all);
  if (sees_) {
    seen_kv_.list_tensors(all);
    seen_k_.list_tensors(all);
  }
  for (NormAcrossHeads* norm : {&self_q_, &self_k_, &text_q_, &text_k_})
    norm->list_tensors(all);
}

Wan::Wan(const spec::WanSpec& spec, const StagePart& part, const WeightLoader& weights,
         at::ScalarType compute, at::Device device)
    : TransformerStage("wan", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_(weights, "condition_embedder.time_embedder", kSineFeatures, spec.inner_dim(),
            spec.inner_dim()),
      modulation_(
          weights.linear("condition_embedder.time_proj", spec.inner_dim(), 6 * spec.inner_dim())) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("patch_embedding.weight", {width, spec.in_channels, 1, patch, patch});
    const std::string text = "condition_embedder.text_embedder.linear_";
    embedding_ = {
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("patch_embedding.bias", {width})),
        weights.linear(text + "1", spec.text_dim, width), weights.linear(text + "2", width, width)};
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return WanBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    last_table_ = weights.copy("scale_shift_table", {1, 2, width}).view({2, width});
    last_ = weights.linear("proj_out", width, patch * patch * spec.out_channels);
  }
  if (spec.image_dim > 0) seen_.emplace(spec, weights);
}

Wan::SeenEmbedder::SeenEmbedder(const spec::WanSpec& spec, const WeightLoader& weights)
    : tokens_(spec.pos_embed_seq_len) {
  const std::string name = "condition_embedder.image_embedder.";
  const int64_t in = spec.image_dim, width = spec.inner_dim();
  if (tokens_ > 0) positions_ = weights.copy(name + "pos_embed", {1, tokens_, in});
  first_weight_ = weights.copy(name + "norm1.weight", {in});
  first_bias_ = weights.copy(name + "norm1.bias", {in});
  first_ = weights.linear(name + "ff.net.0.proj", in, in);
  second_ = weights.linear(name + "ff.net.2", in, width);
  last_weight_ = weights.copy(name + "norm2.weight", {width});
  last_bias_ = weights.copy(name + "norm2.bias", {width});
}

at::Tensor Wan::SeenEmbedder::operator()(const at::Tensor& states) const {
  const auto norm = [](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    constexpr double kLayerNormEps = 1e-5;
    const auto wide = [](const at::Tensor& of) { return of.to(at::kFloat); };
    return at::layer_norm(wide(x), {x.size(2)}, wide(weight), wide(bias), kLayerNormEps)
        .to(x.scalar_type());
  };
  if (tokens_ > 0 && states.size(1) != tokens_)
    throw std::invalid_argument("[wan] " + std::to_string(states.size(1)) +
                                " states of a vision tower, there are positions for " +
                                std::to_string(tokens_));
  const at::Tensor placed = tokens_ > 0 ? states + positions_ : states;
  const at::Tensor wide = at::gelu(first_(norm(placed, first_weight_, first_bias_)));
  return norm(second_(wide), last_weight_, last_bias_);
}

int64_t Wan::SeenEmbedder::bytes() const {
  int64_t total = first_.bytes() + second_.bytes();
  for (const at::Tensor& part : {positions_, first_weight_, first_bias_, last_weight_, last_bias_})
    total += part.defined() ? static_cast<int64_t>(part.nbytes()) : 0;
  return total;
}

int64_t Wan::bytes() const {
  int64_t total = time_.bytes() + modulation_.bytes() + last_.bytes();
  if (last_table_.defined()) total += static_cast<int64_t>(last_table_.nbytes());
  if (embedding_) {
    total += embedding_->patch.bytes() + embedding_->text_first.bytes() +
             embedding_->text_second.bytes();
  }
  if (seen_) total += seen_->bytes();
  return total + blocks_.bytes();
}

Caption Wan::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.text_dim)
    refuse_shape(family_, "the text's states", states, {-1, -1, spec_.text_dim});
  // Padding is attended to, as zeros before the projection.
  const at::Tensor is_token =
      at::arange(states.size(1), at::kLong).unsqueeze(0).lt(text[0].lengths.unsqueeze(1));
  const at::Tensor kept =
      on_device(states).masked_fill(is_token.logical_not().unsqueeze(2).to(device_), 0);
  const int64_t missing = std::max<int64_t>(text[0].tokens - kept.size(1), 0);
  const at::Tensor padded = at::constant_pad_nd(kept, {0, 0, 0, missing});
  return {embedding_->text_second(embedding_->text_first.gelu(padded)), {}};
}

std::unique_ptr<CaptionCache> Wan::cache_of(const Caption& caption, const at::Tensor&) const {
  const at::Tensor states = on_device(caption.states);
  auto cache = std::make_unique<WanCaption>();
  cache->batch_ = states.size(0);
  at::Tensor seen;
  if (seen_) {
    if (!caption.seen.defined())
      throw std::invalid_argument("[wan] a vision tower's states are missing");
    seen = (*seen_)(on_device(caption.seen));
  }
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].text(states, seen));
  return cache;
}

RotaryAngles Wan::rotary_angles_of(PictureSize size) const {
  const int64_t patch = spec_.patch_size, frames = size.frames;
  const int64_t rows = size.latent_height / frames / patch, columns = size.latent_width / patch;
  const auto angles = [](int64_t count, int64_t width) {
    return rotary_angles(at::arange(count, at::TensorOptions().dtype(at::kDouble)), width);
  };
  const at::Tensor frame = angles(frames, spec_.frame_dim()).view({frames, 1, 1, -1});
  const at::Tensor row = angles(rows, spec_.side_dim()).view({1, rows, 1, -1});
  const at::Tensor column = angles(columns, spec_.side_dim()).view({1, 1, columns, -1});
  const auto of_all = [&](at::Tensor (*wave)(const at::Tensor&)) {
    const auto spread = [&](const at::Tensor& angle) {
      return wave(angle).to(device_, at::kFloat).expand({frames, rows, columns, angle.size(3)});
    };
    return at::cat({spread(frame), spread(row), spread(column)}, 3)
        .view({frames * rows * columns, spec_.attention_head_dim / 2});
  };
  return {of_all(at::cos), of_all(at::sin)};
}

std::unique_ptr<StepCondition> Wan::condition(const StepInput& input,
                                              const CaptionCache& caption) const {
  const PictureSize size = input.size;
  if (size.frames < 1 || size.latent_height % (size.frames * spec_.patch_size) != 0) {
    throw std::invalid_argument("[wan] " + std::to_string(size.frames) + " latent frames in " +
                                std::to_string(size.latent_height) + " rows");
  }
  auto step = std::make_unique<WanStep>();
  const int64_t batch = caption.batch();
  const auto embedded = [&](double timestep) {
    return time_(sine_features(at::tensor({timestep}, at::kDouble)).to(device_, compute_));
  };
  const auto modulation = [&](const at::Tensor& of) {
    return modulation_(at::silu(of)).view({1, 6, hidden_width()}).expand({batch, -1, -1});
  };
  const at::Tensor own = embedded(input.timestep);
  step->modulation = modulation(own);
  if (size.given_frames > 0) step->given = modulation(embedded(0));
  step->embedded = own.expand({batch, -1});
  step->batch = batch;
  step->turns = rotary_angles_of(size);
  return step;
}

at::Tensor Wan::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor Wan::compute(at::Tensor hidden, const StepCondition& condition,
                        const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<WanStep>(condition);
  const auto& text = text_of<WanCaption>(caption);
  require_blocks(text.blocks.size());
  const CallTokens& tokens = call.tokens;
  const int64_t columns = tokens.size.latent_width / patch_size();
  const RotaryAngles turns = rotary_angles_of_rows(step.turns, tokens.rows, columns);
  const WanModulation modulation{
      step.modulation, step.given,
      tokens_above(tokens.rows, tokens.size.given_rows() / patch_size(), columns)};
  hidden = hidden.contiguous();
  for (int i = call.begin; i < call.end; ++i)
    blocks_[i].run(hidden, modulation, text.blocks[i], turns, call.attention, call.sums);
  return hidden;
}

at::Tensor Wan::signal_of(const at::Tensor&, const StepCondition& condition) const {
  return step_of<WanStep>(condition).embedded;
}

at::Tensor Wan::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                              int64_t columns) const {
  const at::Tensor factors =
      last_table_.unsqueeze(0) + step_of<WanStep>(condition).embedded.unsqueeze(1);
  const at::Tensor normal = kernels::norm_modulate(hidden.contiguous(), factors.select(1, 1),
                                                   factors.select(1, 0), spec_.eps);
  return latents_of_tokens(last_(normal), columns, patch_size(), TokenOrder::pixels_first);
}

}  // namespace troupe::models
