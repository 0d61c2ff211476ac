#include "models/unet/transformer_2d.h"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/attention.h"

namespace troupe::models::unet {
namespace {

constexpr double kProjectionNormEps = 1e-6;
constexpr double kLayerNormEps = 1e-5;

kernels::Linear joined(const Builder& build, const std::string& name, std::int64_t width) {
  std::vector<at::Tensor> weights;
  for (const char* part : {"to_q", "to_k", "to_v"})
    weights.push_back(build.load.get(name + part + ".weight", {width, width}));
  return product_of(build, at::cat(weights));
}

}  // namespace

BasicTransformerBlock::LayerNorm::LayerNorm(const Builder& build, const std::string& name,
                                            std::int64_t width)
    : weight(build.load.get(name + ".weight", {width})),
      bias(build.load.get(name + ".bias", {width})) {}

at::Tensor BasicTransformerBlock::LayerNorm::operator()(const at::Tensor& x) const {
  return at::layer_norm(x, weight.sizes(), weight, bias, kLayerNormEps);
}

BasicTransformerBlock::BasicTransformerBlock(const Builder& build, const std::string& name,
                                             std::int64_t width, std::int64_t heads,
                                             std::int64_t text_width)
    : heads_(heads),
      index_(build.sites.attentions++),
      norm1_(build, name + ".norm1", width),
      norm2_(build, name + ".norm2", width),
      norm3_(build, name + ".norm3", width),
      qkv_(joined(build, name + ".attn1.", width)),
      out_(product_of(build, name + ".attn1.to_out.0", width, width)),
      q_(product_of(build, name + ".attn2.to_q", width, width, false)),
      k_(product_of(build, name + ".attn2.to_k", text_width, width, false)),
      v_(product_of(build, name + ".attn2.to_v", text_width, width, false)),
      text_out_(product_of(build, name + ".attn2.to_out.0", width, width)),
      widen_(product_of(build, name + ".ff.net.0.proj", width, 8 * width)),
      narrow_(product_of(build, name + ".ff.net.2", 4 * width, width)) {}

TextKeys BasicTransformerBlock::keys_of(const at::Tensor& text) const {
  const std::vector<std::int64_t> shape = {text.size(0), text.size(1), heads_, -1};
  return {k_(text).view(shape), v_(text).view(shape)};
}

void BasicTransformerBlock::operator()(std::vector<at::Tensor>& tokens, const TextKeys& text,
                                       const Call& call, int level) const {
  std::vector<at::Tensor> qkv;
  for (const at::Tensor& x : tokens) {
    const std::int64_t width = x.size(2) / heads_;
    qkv.push_back(qkv_(norm1_(x)).view({x.size(0), x.size(1), 3, heads_, width}));
  }
  const auto seen = call.port.attend({Site::Kind::attention, index_, level}, qkv);
  qkv.clear();
  for (size_t p = 0; p < tokens.size(); ++p) {
    at::Tensor& x = tokens[p];
    if (x.size(1) == 0) continue;
    out_.add_to(x, seen[p].reshape(x.sizes()));
    const at::Tensor q = q_(norm2_(x)).view({x.size(0), x.size(1), heads_, -1});
    const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
    text_out_.add_to(x, kernels::attention(q, text.k, text.v, scale).reshape(x.sizes()));
    const auto halves = widen_(norm3_(x)).chunk(2, 2);
    narrow_.add_to(x, halves[0] * at::gelu(halves[1]));
  }
}

Transformer2DModel::Transformer2DModel(const Builder& build, const std::string& name,
                                       std::int64_t width, std::int64_t heads, std::int64_t blocks,
                                       std::int64_t text_width, bool linear_projection)
    : norm_(build, name + ".norm", width, kProjectionNormEps),
      proj_in_(build, name + ".proj_in", width, width, !linear_projection, true),
      proj_out_(build, name + ".proj_out", width, width, !linear_projection, true) {
  for (std::int64_t b = 0; b < blocks; ++b) {
    transformer_blocks_.emplace_back(build, name + ".transformer_blocks." + std::to_string(b),
                                     width, heads, text_width);
  }
}

void Transformer2DModel::add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const {
  for (const BasicTransformerBlock& block : transformer_blocks_)
    keys.push_back(block.keys_of(text));
}

Features Transformer2DModel::operator()(const Features& x, const TextKeys*& text,
                                        const Call& call) const {
  const Features normal = norm_(x, call, false);
  std::vector<at::Tensor> tokens;
  for (const at::Tensor& patch : normal.patches)
    tokens.push_back(proj_in_(tokens_of(patch)));
  for (const BasicTransformerBlock& block : transformer_blocks_)
    block(tokens, *text++, call, x.level);
  Features result{{}, x.level};
  for (size_t p = 0; p < tokens.size(); ++p) {
    const at::Tensor& before = x.patches[p];
    result.patches.push_back(before +
                             rows_of(proj_out_(tokens[p]), before.size(2), before.size(3)));
  }
  return result;
}

}  // namespace troupe::models::unet
