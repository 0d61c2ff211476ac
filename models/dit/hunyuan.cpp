#include "models/dit/hunyuan.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

constexpr const char* kFamily = "hunyuan";
constexpr int64_t kPoolerHeads = 8;

at::Tensor is_token(const EncoderOutput& of) {
  return at::arange(of.states.size(1), at::kLong).unsqueeze(0).lt(of.lengths.unsqueeze(1));
}

/// Side in pixels of the pictures that positions are counted for, and that sizes are told of.
/// Source: HunyuanDiTPipeline.
constexpr int64_t kBasePixels = 512;
constexpr double kOriginalSize = 1024;

struct HunyuanStep final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = shifts;
    all.push_back(last);
    return all;
  }
  at::Tensor shift(const HunyuanBlock& block, size_t index) const {
    return shifts.empty() ? block.shift(embedded) : shifts[index];
  }

  at::Tensor embedded;             // where blocks are streamed: each makes its shift of it
  std::vector<at::Tensor> shifts;  // by block
  at::Tensor last;
  RotaryAngles turns;  // of all the picture's tokens
};

class HunyuanCaption final : public CaptionCache {
 public:
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<HunyuanCaption>();
    for (const at::Tensor& kv : blocks)
      some->blocks.push_back(kv.slice(0, begin, end));
    some->pooled = pooled.slice(0, begin, end);
    return some;
  }
  int64_t batch() const override { return pooled.size(0); }
  int64_t bytes() const override {
    int64_t total = static_cast<int64_t>(pooled.nbytes());
    for (const at::Tensor& kv : blocks)
      total += static_cast<int64_t>(kv.nbytes());
    return total;
  }
  std::vector<at::Tensor> blocks;  // keys and values [B, L, 2, H, d]
  at::Tensor pooled;
};

}  // namespace

HunyuanText::HunyuanText(const spec::HunyuanSpec& spec, const WeightLoader& weights)
    : spec_(spec),
      widen_(weights, "text_embedder", spec.cross_attention_dim_t5, 4 * spec.cross_attention_dim_t5,
             spec.cross_attention_dim) {
  const int64_t width = spec.cross_attention_dim_t5;
  const std::string pooler = "time_extra_emb.pooler.";
  padding_ = weights.copy("text_embedding_padding",
                          {spec.text_len + spec.text_len_t5, spec.cross_attention_dim});
  positions_ = weights.copy(pooler + "positional_embedding", {spec.text_len_t5 + 1, width});
  query_ = weights.linear(pooler + "q_proj", width, width);
  key_ = weights.linear(pooler + "k_proj", width, width);
  value_ = weights.linear(pooler + "v_proj", width, width);
  out_ = weights.linear(pooler + "c_proj", width, spec.pooled_projection_dim);
}

at::Tensor HunyuanText::pooled(const at::Tensor& states) const {
  const at::Tensor x = at::cat({states.mean(1, true), states}, 1) + positions_.unsqueeze(0);
  const int64_t width = x.size(2) / kPoolerHeads;
  const auto heads = [&](const at::Tensor& t) {
    return t.view({t.size(0), t.size(1), kPoolerHeads, width});
  };
  const at::Tensor first = x.slice(1, 0, 1).contiguous();
  const at::Tensor seen = kernels::attention(heads(query_(first)), heads(key_(x)), heads(value_(x)),
                                             1.0 / std::sqrt(static_cast<double>(width)));
  return out_(seen.view({x.size(0), x.size(2)}));
}

Caption HunyuanText::operator()(const std::vector<EncoderOutput>& text, at::Device device,
                                at::ScalarType compute) const {
  const auto& bert = text.at(0);
  const auto& t5 = text.at(1);
  if (bert.states.dim() != 3 || bert.states.size(1) != spec_.text_len ||
      bert.states.size(2) != spec_.cross_attention_dim) {
    refuse_shape(kFamily, "BERT's states", bert.states,
                 {-1, spec_.text_len, spec_.cross_attention_dim});
  }
  if (t5.states.dim() != 3 || t5.states.size(1) != spec_.text_len_t5 ||
      t5.states.size(2) != spec_.cross_attention_dim_t5) {
    refuse_shape(kFamily, "T5's states", t5.states,
                 {-1, spec_.text_len_t5, spec_.cross_attention_dim_t5});
  }
  const at::Tensor wide = t5.states.to(device, compute);
  const at::Tensor states = at::cat({bert.states.to(device, compute), widen_(wide)}, 1);
  const at::Tensor mask = at::cat({is_token(bert), is_token(t5)}, 1).unsqueeze(2).to(device);
  return {at::where(mask, states, padding_.unsqueeze(0)), pooled(wide)};
}

int64_t HunyuanText::bytes() const {
  return widen_.bytes() + static_cast<int64_t>(padding_.nbytes() + positions_.nbytes()) +
         query_.bytes() + key_.bytes() + value_.bytes() + out_.bytes();
}

AffineNorm::AffineNorm(const WeightLoader& weights, const std::string& name, int64_t width)
    : weight_(weights.copy(name + ".weight", {width})),
      bias_(weights.copy(name + ".bias", {width})),
      scale_(weight_ - 1) {}

at::Tensor AffineNorm::operator()(const at::Tensor& x, const at::Tensor& shift) const {
  const int64_t batch = x.size(0), width = x.size(2);
  const at::Tensor by = shift.defined() ? shift + bias_ : bias_.unsqueeze(0).expand({batch, width});
  return kernels::norm_modulate(x, scale_.unsqueeze(0).expand({batch, width}), by, kEps);
}

at::Tensor AffineNorm::by_head(const at::Tensor& x) const {
  return at::layer_norm(x, {weight_.size(0)}, weight_, bias_, kEps);
}

int64_t AffineNorm::bytes() const {
  return weight_.defined() ? static_cast<int64_t>(weight_.nbytes() + bias_.nbytes()) : 0;
}

HunyuanBlock::HunyuanBlock(const spec::HunyuanSpec& spec, int index, WeightShard shard,
                           const WeightLoader& weights)
    : index_(index),
      sharded_(shard.degree > 1),
      takes_skip_(spec.takes_skip(index)),
      leaves_skip_(spec.leaves_skip(index)),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim) {
  const std::string prefix = "blocks." + std::to_string(index) + ".";
  const std::string self = prefix + "attn1.", cross = prefix + "attn2.";
  const int64_t width = spec.inner_dim(), wide = spec.ff_inner_dim();
  const int64_t text = spec.cross_attention_dim, heads = spec.num_attention_heads;
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const bool first = shard.rank == 0;
  shift_ = weights.linear(prefix + "norm1.linear", width, width);
  norm_self_ = AffineNorm(weights, prefix + "norm1.norm", width);
  qkv_ = weights.joined({self + "to_q", self + "to_k", self + "to_v"}, width, width, true, own);
  self_out_ = weights.narrow(self + "to_out.0", width, width, own, first);
  self_q_ = AffineNorm(weights, self + "norm_q", head_dim_);
  self_k_ = AffineNorm(weights, self + "norm_k", head_dim_);
  norm_cross_ = AffineNorm(weights, prefix + "norm2", width);
  cross_q_ = weights.joined({cross + "to_q"}, width, width, true, own);
  cross_kv_ = weights.joined({cross + "to_k", cross + "to_v"}, text, width, true, own);
  cross_out_ = weights.narrow(cross + "to_out.0", width, width, own, first);
  text_q_ = AffineNorm(weights, cross + "norm_q", head_dim_);
  text_k_ = AffineNorm(weights, cross + "norm_k", head_dim_);
  norm_forward_ = AffineNorm(weights, prefix + "norm3", width);
  widen_ = weights.joined({prefix + "ff.net.0.proj"}, width, wide, true, columns);
  narrow_ = weights.narrow(prefix + "ff.net.2", wide, width, columns, first);
  if (!takes_skip_) return;
  norm_skip_ = AffineNorm(weights, prefix + "skip_norm", 2 * width);
  skip_ = weights.linear(prefix + "skip_linear", 2 * width, width);
}

at::Tensor HunyuanBlock::caption(const at::Tensor& states) const {
  const at::Tensor kv =
      cross_kv_(states).view({states.size(0), states.size(1), 2, heads_, head_dim_});
  return at::stack({text_k_.by_head(kv.select(2, 0)), kv.select(2, 1)}, 2);
}

void HunyuanBlock::run(at::Tensor& hidden, const at::Tensor& skip, const at::Tensor& shift,
                       const at::Tensor& caption, const RotaryAngles& turns,
                       AttentionPort& attention, TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto joined = [&](const at::Tensor& heads) {
    return heads.reshape({batch, tokens, heads_ * head_dim_});
  };
  if (takes_skip_) hidden = skip_(norm_skip_(at::cat({hidden, skip}, 2)));

  const at::Tensor qkv = qkv_(modulated(hidden, shift)).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = self_q_.by_head(qkv.select(2, 0)), k = self_k_.by_head(qkv.select(2, 1));
  kernels::norm_rotate(q, {}, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, {}, turns.cosine, turns.sine, kEps);
  const at::Tensor seen = attention.attend(index_, at::stack({q, k, qkv.select(2, 2)}, 2));
  add_product(hidden, self_out_, joined(seen), std::nullopt, sharded_, sums);

  at::Tensor ask =
      text_q_.by_head(cross_q_(norm_cross_(hidden)).view({batch, tokens, heads_, head_dim_}));
  kernels::norm_rotate(ask, {}, turns.cosine, turns.sine, kEps);
  const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_));
  const at::Tensor told =
      kernels::attention(ask, caption.select(2, 0), caption.select(2, 1), scale);
  add_product(hidden, cross_out_, joined(told), std::nullopt, sharded_, sums);

  add_product(hidden, narrow_, widen_.gelu(norm_forward_(hidden)), std::nullopt, sharded_, sums);
}

int64_t HunyuanBlock::bytes() const {
  int64_t total = 0;
  for (const kernels::Linear* linear :
       {&shift_, &qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_, &skip_})
    total += linear->bytes();
  for (const AffineNorm* norm : {&norm_self_, &norm_cross_, &norm_forward_, &norm_skip_, &self_q_,
                                 &self_k_, &text_q_, &text_k_})
    total += norm->bytes();
  return total;
}

void AffineNorm::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&weight_, &bias_, &scale_});
}

void HunyuanBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear :
       {&shift_, &qkv_, &self_out_, &cross_q_, &cross_kv_, &cross_out_, &widen_, &narrow_, &skip_})
    linear->list_tensors(all);
  for (AffineNorm* norm : {&norm_self_, &norm_cross_, &norm_forward_, &norm_skip_, &self_q_,
                           &self_k_, &text_q_, &text_k_})
    norm->list_tensors(all);
}

Hunyuan::Hunyuan(const spec::HunyuanSpec& spec, int64_t pixels_per_latent, const StagePart& part,
                 const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : TransformerStage(kFamily, spec::facts_of(spec), part, compute, device),
      spec_(spec),
      pixels_per_latent_(pixels_per_latent) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const std::string condition = "time_extra_emb.";
  timestep_ = SiluMlp(weights, condition + "timestep_embedder", kSineFeatures, width, width);
  extra_ = SiluMlp(weights, condition + "extra_embedder", spec.extra_dim(), 4 * width, width);
  if (spec.use_style_cond_and_image_meta_size)
    style_ = weights.copy(condition + "style_embedder.weight", {1, width});
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
    patch_ =
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width}));
    text_.emplace(spec, weights);
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return HunyuanBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    last_ = LastLayer(weights, width, patch, spec.in_channels,
                      (spec.learn_sigma ? 2 : 1) * spec.in_channels, TokenOrder::pixels_first);
  }
}

int64_t Hunyuan::bytes() const {
  int64_t total = timestep_.bytes() + extra_.bytes() + patch_.bytes();
  if (style_.defined()) total += static_cast<int64_t>(style_.nbytes());
  if (text_) total += text_->bytes();
  total += blocks_.bytes();
  return total + (last_ ? last_->bytes() : 0);
}

Caption Hunyuan::caption_of(const std::vector<EncoderOutput>& text) const {
  return (*text_)(text, device_, compute_);
}

std::unique_ptr<CaptionCache> Hunyuan::cache_of(const Caption& caption, const at::Tensor&) const {
  auto cache = std::make_unique<HunyuanCaption>();
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].caption(on_device(caption.states)));
  cache->pooled = caption.pooled;
  return cache;
}

RotaryAngles Hunyuan::rotary_angles_of(PictureSize size) const {
  const int64_t rows = size.latent_height / spec_.patch_size;
  const int64_t columns = size.latent_width / spec_.patch_size;
  // A picture's grid is laid into the middle of a square one, in full along its longer side.
  const int64_t base = kBasePixels / pixels_per_latent_ / spec_.patch_size;
  const auto fitted = [&](int64_t shorter, int64_t longer) {
    const double share = static_cast<double>(base) / static_cast<double>(longer);
    return std::nearbyint(share * static_cast<double>(shorter));
  };
  const double high = rows > columns ? static_cast<double>(base) : fitted(rows, columns);
  const double wide = rows > columns ? fitted(columns, rows) : static_cast<double>(base);
  const auto positions = [&](int64_t count, double extent) {
    const double start = std::nearbyint((static_cast<double>(base) - extent) / 2);
    const auto number = static_cast<double>(count);
    return at::linspace(start, (start + extent) * (number - 1) / number, count,
                        at::TensorOptions().dtype(at::kFloat));
  };
  const at::Tensor row = positions(rows, high).view({rows, 1}).expand({rows, columns});
  const at::Tensor column = positions(columns, wide).view({1, columns}).expand({rows, columns});
  const int64_t half = spec_.attention_head_dim / 2;
  const at::Tensor angle = at::cat(
      {rotary_angles(column.reshape({-1}), half), rotary_angles(row.reshape({-1}), half)}, 1);
  return {at::cos(angle).to(device_, at::kFloat), at::sin(angle).to(device_, at::kFloat)};
}

std::unique_ptr<StepCondition> Hunyuan::condition(const StepInput& input,
                                                  const CaptionCache& caption) const {
  const auto& text = text_of<HunyuanCaption>(caption);
  const auto features = [&](const std::vector<double>& values) {
    return sine_features(at::tensor(values).to(at::kFloat)).to(device_, compute_);
  };
  at::Tensor extra = text.pooled;
  if (spec_.use_style_cond_and_image_meta_size) {
    const int64_t batch = text.batch();
    const auto pixels = [&](int64_t latent) {
      return static_cast<double>(latent * pixels_per_latent_);
    };
    const at::Tensor sizes =
        features({kOriginalSize, kOriginalSize, pixels(input.size.latent_height),
                  pixels(input.size.latent_width), 0, 0})
            .view({1, -1});
    extra = at::cat({extra, sizes.expand({batch, -1}), style_.expand({batch, -1})}, 1);
  }
  const at::Tensor embedded = at::silu(timestep_(features({input.timestep})) + extra_(extra));
  auto step = std::make_unique<HunyuanStep>();
  step->batch = text.batch();
  if (blocks_.streamed()) step->embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->shifts.push_back(blocks_[i].shift(embedded));
  if (last_) step->last = last_->modulation(embedded);
  step->turns = rotary_angles_of(input.size);
  return step;
}

at::Tensor Hunyuan::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return patch_(tokens_of_latents(latents, patch_size()));
}

at::Tensor Hunyuan::compute(at::Tensor hidden, const StepCondition& condition,
                            const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<HunyuanStep>(condition);
  const auto& text = text_of<HunyuanCaption>(caption);
  if (!blocks_.streamed()) require_blocks(step.shifts.size());
  require_blocks(text.blocks.size());
  const CallTokens& tokens = call.tokens;
  const int64_t width = hidden_width();
  std::vector<at::Tensor> left;
  for (int64_t at = hidden.size(2) - width; at > 0; at -= width)
    left.push_back(hidden.slice(2, at, at + width));
  hidden = hidden.slice(2, 0, width).contiguous();
  const RotaryAngles turns =
      rotary_angles_of_rows(step.turns, tokens.rows, tokens.size.latent_width / patch_size());
  for (int i = call.begin; i < call.end; ++i) {
    const HunyuanBlock& block = blocks_[i];
    at::Tensor skip;
    if (block.takes_skip()) {
      skip = left.back();
      left.pop_back();
    }
    block.run(hidden, skip, step.shift(block, i), text.blocks[i], turns, call.attention, call.sums);
    if (block.leaves_skip()) left.push_back(hidden.clone());
  }
  if (left.empty()) return hidden;
  left.push_back(hidden);
  std::reverse(left.begin(), left.end());
  return at::cat(left, 2);
}

at::Tensor Hunyuan::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const HunyuanBlock& block = blocks_[0];
  return block.modulated(picture, step_of<HunyuanStep>(condition).shift(block, 0));
}

at::Tensor Hunyuan::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                  int64_t columns) const {
  return (*last_)(hidden, step_of<HunyuanStep>(condition).last, columns);
}

}  // namespace troupe::models
