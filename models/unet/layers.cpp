#include "models/unet/layers.h"

#include <ATen/ATen.h>

#include <algorithm>

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

}  // namespace

kernels::Linear product_of(const Builder& build, const at::Tensor& weight, const at::Tensor& bias) {
  if (build.products == kernels::WeightType::as_computed) return kernels::Linear(weight, bias);
  auto small = kernels::quantize_weight(weight, build.products);
  build.saved +=
      static_cast<std::int64_t>(weight.nbytes() - small.values.nbytes() - small.scales.nbytes());
  return kernels::Linear(std::move(small), bias);
}

kernels::Linear product_of(const Builder& build, const std::string& name, std::int64_t in,
                           std::int64_t out, bool bias) {
  return product_of(build, build.load.get(name + ".weight", {out, in}),
                    bias ? build.load.get(name + ".bias", {out}) : at::Tensor());
}

at::Tensor tokens_of(const at::Tensor& x) {
  return x.permute({0, 2, 3, 1}).reshape({x.size(0), x.size(2) * x.size(3), x.size(1)});
}

at::Tensor rows_of(const at::Tensor& tokens, std::int64_t rows, std::int64_t width) {
  return tokens.view({tokens.size(0), rows, width, tokens.size(2)}).permute({0, 3, 1, 2});
}

Conv2d::Conv2d(const Builder& build, const std::string& name, std::int64_t in, std::int64_t out,
               Way way)
    : weight_(build.load.get_kernel(name + ".weight", {out, in, 3, 3})),
      bias_(build.load.get(name + ".bias", {out})),
      way_(way),
      index_(build.sites.convs++) {}

at::Tensor Conv2d::convolve(const at::Tensor& x, RowRun own, const Halo& halo, RowRun out,
                            const Call& call, int level) const {
  const std::int64_t height = call.port.height(level);
  const std::int64_t width = call.widths.at(level);
  if (out.size() == 0) {
    return at::empty({x.size(0), weight_.size(0), 0, width}, x.options());
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
  linear_ = quantized ? product_of(build, weight, bias) : kernels::Linear(weight, bias);
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

}  // namespace troupe::models::unet
