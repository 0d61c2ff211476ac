#include "models/unet/layers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention.h"

namespace troupe::models::unet {
namespace {

// Rows [begin, end) of the whole map, of which `x` are `own` and the halo one more either way.
at::Tensor window(const at::Tensor& x, RowRun own, const Halo& halo, std::int64_t begin,
                  std::int64_t end) {
  std::vector<at::Tensor> parts;
  if (begin < own.begin) parts.push_back(halo.above);
  const std::int64_t first = std::max(begin, own.begin);
  const std::int64_t last = std::min(end, own.end);
  if (last > first) parts.push_back(x.narrow(2, first - own.begin, last - first));
  if (end > own.end) parts.push_back(halo.below);
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

// Mean and mean square of each group, [2, B, groups] in float64.
Moments moments_of(const at::Tensor& x, std::int64_t groups) {
  if (x.size(2) == 0) {
    return {at::zeros({2, x.size(0), groups}, x.options().dtype(at::kDouble)), 0};
  }
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor by_group = x.to(wide).reshape({x.size(0), groups, -1});
  const auto [variance, mean] = at::var_mean(by_group, at::IntArrayRef{2}, 0);
  const at::Tensor center = mean.to(at::kDouble);
  return {at::stack({center, variance.to(at::kDouble) + center.square()}), x.size(2)};
}

constexpr double kProjectionNormEps = 1e-6;
constexpr double kLayerNormEps = 1e-5;

kernels::Linear joined(const Builder& build, const std::string& name, std::int64_t width) {
  std::vector<std::string> names;
  std::vector<at::Tensor> weights;
  for (const char* part : {"to_q", "to_k", "to_v"}) {
    names.push_back(name + part + ".weight");
    weights.push_back(build.load.get(names.back(), {width, width}));
  }
  return product_of(build, names, at::cat(weights));
}

}  // namespace

kernels::Linear product_of(const Builder& build, const std::vector<std::string>& names,
                           const at::Tensor& weight, const at::Tensor& bias) {
  if (build.products == kernels::WeightType::as_computed) {
    const auto packed = [&](const std::string& name) {
      return build.packed ? build.packed(name) : std::nullopt;
    };
    if (std::ranges::none_of(names, [&](const auto& name) { return packed(name).has_value(); }))
      return kernels::Linear(weight, bias);
    std::vector<kernels::StoredRows> parts;
    build.saved += static_cast<std::int64_t>(weight.nbytes());
    for (const at::Tensor& own : weight.chunk(std::ssize(names))) {
      if (const auto matrix = packed(names[parts.size()])) {
        const auto stored = matrix->part(0, own.size(0), 0, own.size(1));
        parts.push_back({stored.bytes.to(own.device()), stored.unpacker(own.scalar_type())});
      } else {
        parts.push_back({own.clone(), [](const at::Tensor& of) { return of; }});
      }
      build.saved -= static_cast<std::int64_t>(parts.back().bytes.nbytes());
    }
    return kernels::Linear(std::move(parts), weight.size(1), bias);
  }
  auto small = kernels::quantize_weight(weight, build.products);
  build.saved +=
      static_cast<std::int64_t>(weight.nbytes() - small.values.nbytes() - small.scales.nbytes());
  return kernels::Linear(std::move(small), bias);
}

kernels::Linear product_of(const Builder& build, const std::string& name, std::int64_t in,
                           std::int64_t out, bool bias) {
  const std::string tensor = name + ".weight";
  return product_of(build, {tensor}, build.load.get(tensor, {out, in}),
                    bias ? build.load.get(name + ".bias", {out}) : at::Tensor());
}

at::Tensor tokens_of(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).reshape({x.size(0), x.size(2) * x.size(3), x.size(1)});
}

at::Tensor rows_of(const at::Tensor& tokens, std::int64_t rows, std::int64_t width) {
  return tokens.view({tokens.size(0), rows, width, tokens.size(2)}).permute({0, 3, 1, 2});
}

Conv2d::Conv2d(const Builder& build, const std::string& name, std::int64_t in, std::int64_t out,
               Way way, bool quantized)
    : out_(out), way_(way), index_(build.sites.convs++) {
  const at::Tensor bias = build.load.get(name + ".bias", {out});
  if (quantized && build.products != kernels::WeightType::as_computed) {
    const at::Tensor weight = build.load.get(name + ".weight", {out, in, 3, 3});
    windows_.emplace(weight, bias, build.products);
    build.saved += static_cast<std::int64_t>(weight.nbytes() + bias.nbytes()) - windows_->bytes();
    return;
  }
  weight_ = build.load.get_kernel(name + ".weight", {out, in, 3, 3});
  bias_ = bias;
}

at::Tensor Conv2d::convolve(const at::Tensor& x, RowRun own, const Halo& halo, RowRun out,
                            const Call& call, int level) const {
  const std::int64_t height = call.port.height(level);
  const std::int64_t width = call.widths.at(level);
  if (out.size() == 0) {
    return at::empty({x.size(0), out_, 0, width}, x.options());
  }
  const std::int64_t stride = way_ == Way::down ? 2 : 1;
  // Rows that are read, counted at the level that the kernel slides over.
  const std::int64_t whole = way_ == Way::down ? call.port.height(level - 1) : height;
  const std::int64_t begin = stride * out.begin - 1;
  const std::int64_t end = stride * (out.end - 1) + 2;
  const std::int64_t first = std::max<std::int64_t>(begin, 0);
  const std::int64_t last = std::min(end, whole);
  at::Tensor rows;
  if (way_ == Way::up) {
    const std::int64_t source = first / 2;
    rows = window(x, own, halo, source, (last + 1) / 2);
    rows = at::upsample_nearest2d(rows, {2 * rows.size(2), 2 * rows.size(3)});
    rows = rows.narrow(2, first - 2 * source, last - first).narrow(3, 0, width);
  } else {
    rows = window(x, own, halo, first, last);
  }
  if (first > begin || last < end) {
    rows = at::constant_pad_nd(rows, {0, 0, first - begin, end - last});
  }
  if (windows_) return (*windows_)(rows, stride);
  return at::conv2d(rows, weight_, bias_, stride, at::IntArrayRef{0, 1});
}

Features Conv2d::operator()(const Features& x, const Call& call) const {
  const int level = x.level + (way_ == Way::down ? 1 : way_ == Way::up ? -1 : 0);
  const auto own = call.port.rows(x.level);
  const auto out = call.port.rows(level);
  const auto halos = call.port.halos({Site::Kind::conv, index_, x.level}, x);
  Features result{{}, level};
  for (size_t p = 0; p < x.patches.size(); ++p) {
    result.patches.push_back(convolve(x.patches[p], own[p], halos[p], out[p], call, level));
  }
  return result;
}

Pointwise::Pointwise(const Builder& build, const std::string& name, std::int64_t in,
                     std::int64_t out, bool convolution, bool quantized) {
  std::vector<std::int64_t> shape = {out, in};
  if (convolution) shape.insert(shape.end(), {1, 1});
  const at::Tensor weight = build.load.get(name + ".weight", shape).view({out, in});
  const at::Tensor bias = build.load.get(name + ".bias", {out});
  linear_ = quantized ? product_of(build, {name + ".weight"}, weight, bias)
                      : kernels::Linear(weight, bias);
}

GroupNorm::GroupNorm(const Builder& build, const std::string& name, std::int64_t channels,
                     double epsilon)
    : weight_(build.load.get(name + ".weight", {channels})),
      bias_(build.load.get(name + ".bias", {channels})),
      groups_(build.norm_groups),
      epsilon_(epsilon),
      index_(build.sites.norms++) {}

Features GroupNorm::operator()(const Features& x, const Call& call, bool silu) const {
  std::vector<Moments> own;
  for (const at::Tensor& patch : x.patches)
    own.push_back(moments_of(patch, groups_));
  const auto moments = call.port.moments({Site::Kind::norm, index_, x.level}, own);
  Features result{{}, x.level};
  for (size_t p = 0; p < x.patches.size(); ++p) {
    const at::Tensor& patch = x.patches[p];
    const std::int64_t batch = patch.size(0);
    const at::Tensor scale = (moments[p][1].clamp_min(0) + epsilon_).rsqrt().unsqueeze(2);
    const at::Tensor factor = weight_.to(at::kDouble).view({1, groups_, -1}) * scale;
    const at::Tensor addend =
        bias_.to(at::kDouble).view({1, groups_, -1}) - factor * moments[p][0].unsqueeze(2);
    const auto wide = patch.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto by_channel = [&](const at::Tensor& t) {
      return t.to(wide).reshape({batch, -1, 1, 1});
    };
    at::Tensor y = at::addcmul(by_channel(addend), patch.to(wide), by_channel(factor));
    if (silu) at::silu_(y);
    result.patches.push_back(y.to(patch.scalar_type()));
  }
  return result;
}

ResnetBlock2D::ResnetBlock2D(const Builder& build, const std::string& name, std::int64_t in,
                             std::int64_t out, std::int64_t time_width)
    : norm1_(build, name + ".norm1", in, build.norm_eps),
      conv1_(build, name + ".conv1", in, out),
      time_emb_proj_(build.load.get(name + ".time_emb_proj.weight", {out, time_width}),
                     build.load.get(name + ".time_emb_proj.bias", {out})),
      norm2_(build, name + ".norm2", out, build.norm_eps),
      conv2_(build, name + ".conv2", out, out) {
  if (in != out) conv_shortcut_.emplace(build, name + ".conv_shortcut", in, out, true, false);
}

Features ResnetBlock2D::operator()(const Features& x, const at::Tensor& time,
                                   const Call& call) const {
  Features h = conv1_(norm1_(x, call, true), call);
  const at::Tensor shift = time_emb_proj_(time).unsqueeze(2).unsqueeze(3);
  for (at::Tensor& patch : h.patches)
    patch.add_(shift);
  h = conv2_(norm2_(h, call, true), call);
  for (size_t p = 0; p < h.patches.size(); ++p) {
    const at::Tensor& before = x.patches[p];
    h.patches[p].add_(conv_shortcut_ ? rows_of((*conv_shortcut_)(tokens_of(before)), before.size(2),
                                               before.size(3))
                                     : before);
  }
  return h;
}

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
