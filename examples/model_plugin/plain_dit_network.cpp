// libplain_dit_network.so: the model and the sampler themselves, with LibTorch.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"
#include "models/dit/transformer_stage.h"
#include "models/plugin/network_plugin.h"
#include "plain_dit.h"

using namespace troupe::models;
namespace kernels = troupe::kernels;
namespace spec = troupe::spec;

namespace {

/// Sines and cosines of a token's row and column, [tokens, width].
at::Tensor positions(TokenRows rows, int64_t columns, int64_t width, const at::Tensor& like) {
  const int64_t each = width / 4;
  const auto rates = at::exp(at::arange(each, at::kFloat) * (-9.0 / static_cast<double>(each)));
  const auto waves = [&](const at::Tensor& at_place) {
    const auto angles = at_place.to(at::kFloat).unsqueeze(1) * rates;
    return at::cat({angles.sin(), angles.cos()}, 1);
  };
  const auto row = at::arange(rows.begin, rows.end, at::kLong).repeat_interleave(columns);
  const auto column = at::arange(columns, at::kLong).repeat({rows.end - rows.begin});
  return at::cat({waves(row), waves(column)}, 1).to(like.options());
}

/// The mean of a text's states, which is all that the blocks see of it: [B, D].
class PlainCaption : public CaptionCache {
 public:
  explicit PlainCaption(at::Tensor mean_of_text) : mean(std::move(mean_of_text)) {}
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    return std::make_unique<PlainCaption>(mean.slice(0, begin, end));
  }
  int64_t batch() const override { return mean.size(0); }
  int64_t bytes() const override { return static_cast<int64_t>(mean.nbytes()); }
  at::Tensor mean;
};

class PlainStep : public StageStep {
 public:
  std::vector<at::Tensor> tensors() const override {
    auto all = blocks;
    if (last.defined()) all.push_back(last);
    return all;
  }
  std::vector<at::Tensor> blocks;  // [B, 6, D] each
  at::Tensor last;                 // [B, 2, D]
};

struct PlainBlock {
  PlainBlock(const PlainDiTSpec& of, int number, WeightShard shard, const WeightLoader& weights)
      : index(number), sharded(shard.degree > 1), heads(shard.size(of.heads)), dim(of.head_dim) {
    const int64_t width = of.width(), wide = 4 * width;
    const auto name = plain_block(number);
    const Slice own{shard.begin(of.heads) * dim, shard.end(of.heads) * dim};
    const Slice columns{shard.begin(wide), shard.end(wide)};
    const bool first = shard.rank == 0;  // the sum over shards has each bias once
    modulation = weights.linear(name + "modulation", width, 6 * width);
    qkv = weights.joined({name + "to_q", name + "to_k", name + "to_v"}, width, width, true, own);
    out = weights.narrow(name + "to_out", width, width, own, first);
    widen = weights.joined({name + "widen"}, width, wide, true, columns);
    narrow = weights.narrow(name + "narrow", wide, width, columns, first);
  }

  at::Tensor normal(const at::Tensor& hidden, const at::Tensor& values, int64_t shift) const {
    return kernels::norm_modulate(hidden, values.select(1, shift + 1), values.select(1, shift),
                                  kEps);
  }
  void run(at::Tensor& hidden, const at::Tensor& values, AttentionPort& attention,
           TensorParallelPort& sums) const {
    const int64_t batch = hidden.size(0), tokens = hidden.size(1);
    const auto q_k_v = qkv(normal(hidden, values, kShift)).view({batch, tokens, 3, heads, dim});
    const auto seen = attention.attend(index, q_k_v).view({batch, tokens, heads * dim});
    add_product(hidden, out, seen, values.select(1, kGate), sharded, sums);
    add_product(hidden, narrow, widen.gelu(normal(hidden, values, kShiftForward)),
                values.select(1, kGateForward), sharded, sums);
  }
  int64_t bytes() const {
    return modulation.bytes() + qkv.bytes() + out.bytes() + widen.bytes() + narrow.bytes();
  }

  int index;
  bool sharded;
  int64_t heads, dim;  // of this shard
  kernels::Linear modulation, qkv, out, widen, narrow;
};

class PlainDiT final : public TransformerStage {
 public:
  PlainDiT(const PlainDiTSpec& spec, const StagePart& part, const WeightLoader& weights,
           at::ScalarType compute, at::Device device)
      : TransformerStage("plain_dit", spec.facts(), part, compute, device),
        time_(weights, "time", kSineFeatures, spec.width(), spec.width()) {
    if (part.embeds) {
      embed_ = weights.linear("embed", spec.channels * spec.patch * spec.patch, spec.width());
      text_ = weights.linear("text", spec.text_width, spec.width());
    }
    for (int block = part.blocks.begin; block < part.blocks.end; ++block)
      blocks_.emplace_back(spec, block, part.shard, weights);
    if (part.projects) {
      last_ = LastLayer(weights, spec.width(), spec.patch, spec.channels, spec.channels,
                        TokenOrder::pixels_first);
    }
  }

  int64_t bytes() const override {
    int64_t total = time_.bytes() + embed_.bytes() + text_.bytes() + last_.bytes();
    for (const auto& block : blocks_)
      total += block.bytes();
    return total;
  }

  std::unique_ptr<StepCondition> condition(const StepInput& input,
                                           const CaptionCache& caption) const override {
    const auto& mean = text_of<PlainCaption>(caption).mean;
    const auto features = sine_features(at::full({1}, input.timestep, at::kFloat));
    const auto state = at::silu(time_(on_device(features)) + mean);
    auto step = std::make_unique<PlainStep>();
    step->batch = mean.size(0);
    for (const auto& block : blocks_)
      step->blocks.push_back(block.modulation(state).view({-1, 6, hidden_width()}));
    if (part_.projects) step->last = last_.modulation(state);
    return step;
  }

 private:
  Caption caption_of(const std::vector<EncoderOutput>& text) const override {
    return {text_(on_device(text.at(0).states)), {}};
  }
  std::unique_ptr<CaptionCache> cache_of(const Caption& caption,
                                         const at::Tensor& mask) const override {
    const auto seen = on_device(mask).unsqueeze(2);
    return std::make_unique<PlainCaption>((caption.states * seen).sum(1) / seen.sum(1));
  }
  at::Tensor tokens_of(const at::Tensor& latents, PictureSize size, TokenRows rows) const override {
    const auto tokens = embed_(tokens_of_latents(latents, patch_size()));
    return tokens + positions(rows, size.latent_width / patch_size(), hidden_width(), tokens);
  }
  at::Tensor compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache&,
                     const BlockCall& call) const override {
    const auto& step = step_of<PlainStep>(condition);
    hidden = hidden.contiguous();
    for (int i = call.begin; i < call.end; ++i)
      blocks_[i].run(hidden, step.blocks[i], call.attention, call.sums);
    return hidden;
  }
  at::Tensor signal_of(const at::Tensor& picture, const StepCondition& condition) const override {
    return blocks_.front().normal(picture, step_of<PlainStep>(condition).blocks.front(), kShift);
  }
  at::Tensor prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                           int64_t columns) const override {
    return last_(hidden, step_of<PlainStep>(condition).last, columns);
  }

  SiluMlp time_;
  kernels::Linear embed_, text_;
  std::vector<PlainBlock> blocks_;
  LastLayer last_;
};

/// Euler's steps over noise levels that fall evenly from 80 to 0.
class PlainEuler final : public Sampler {
 public:
  explicit PlainEuler(int steps) : steps_(steps) {}
  int steps() const override { return steps_; }
  double timestep(int i) const override { return 1000.0 * (steps_ - i) / steps_ - 1; }
  double init_noise_sigma() const override { return sigma(0); }
  at::Tensor scale_model_input(const at::Tensor& sample, int i) const override {
    return sample / std::sqrt(sigma(i) * sigma(i) + 1);
  }
  at::Tensor step(SamplerState&, int i, const at::Tensor& noise, const at::Tensor& sample,
                  const at::Tensor&) const override {
    return sample + noise * (sigma(i + 1) - sigma(i));
  }
  at::Tensor add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const override {
    return clean + noise * sigma(i);
  }
  at::Tensor clean(SamplerState&, int i, const at::Tensor& noise, const at::Tensor& sample,
                   const at::Tensor&) const override {
    return sample - noise * sigma(i);
  }

 private:
  double sigma(int i) const { return 80.0 * (steps_ - i) / steps_; }
  int steps_;
};

void add_to(NetworkRegistry& registry) {
  registry.add_transformer(
      "PlainDiT", [](const spec::UserTransformer& of, const spec::ModelSpec&, const StagePart& part,
                     const WeightLoader& weights, at::ScalarType compute, at::Device device) {
        return std::make_unique<PlainDiT>(static_cast<const PlainDiTSpec&>(of), part, weights,
                                          compute, device);
      });
  registry.add_sampler("plain-euler", [](const std::string&, const SamplerRun& run) {
    return std::make_unique<PlainEuler>(run.num_steps);
  });
}

}  // namespace

TROUPE_NETWORK_PLUGIN(add_to)
