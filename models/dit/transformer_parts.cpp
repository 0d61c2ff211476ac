#include "models/dit/transformer_parts.h"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/elementwise.h"

namespace troupe::models {

at::Tensor rotary_angles(const at::Tensor& positions, int64_t width, at::ScalarType type,
                         double theta) {
  const at::Tensor exponent =
      at::arange(0, width, 2, at::TensorOptions().dtype(type)).div(static_cast<double>(width));
  const at::Tensor frequency = at::reciprocal(at::pow(theta, exponent));
  return positions.to(type).unsqueeze(1) * frequency.unsqueeze(0);
}

RotaryAngles RotaryAngles::part(int64_t begin, int64_t end) const {
  return {cosine.slice(0, begin, end), sine.slice(0, begin, end)};
}

RotaryAngles RotaryAngles::joined(const std::vector<RotaryAngles>& runs) {
  std::vector<at::Tensor> cosines, sines;
  for (const RotaryAngles& run : runs) {
    cosines.push_back(run.cosine);
    sines.push_back(run.sine);
  }
  return {at::cat(cosines), at::cat(sines)};
}

RotaryAngles rotary_angles_of_rows(const RotaryAngles& all, const std::vector<TokenRows>& rows,
                                   int64_t columns) {
  if (!all.cosine.defined()) return {};
  if (rows.size() == 1) return all.part(rows[0].begin * columns, rows[0].end * columns);
  std::vector<RotaryAngles> runs{all.part(0, 0)};
  for (const TokenRows& run : rows)
    runs.push_back(all.part(run.begin * columns, run.end * columns));
  return RotaryAngles::joined(runs);
}

RotaryAngles with_unrotated(const RotaryAngles& turns, int64_t tokens) {
  if (tokens == 0) return turns;
  const int64_t width = turns.cosine.size(1);
  return RotaryAngles::joined({{at::ones({tokens, width}, turns.cosine.options()),
                                at::zeros({tokens, width}, turns.sine.options())},
                               turns});
}

double timestep_of_flux(double timestep) {
  return static_cast<float>(timestep) / 1000.0F * 1000.0F;
}

at::Tensor sine_features(const at::Tensor& values, double scale, int64_t features) {
  const int64_t half = features / 2;
  const at::Tensor index = at::arange(0, half, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor frequency =
      at::exp(index.mul(-std::log(10000.0)).div(static_cast<double>(half)));
  const at::Tensor angle =
      values.to(at::kCPU, at::kFloat).unsqueeze(1).mul(frequency.unsqueeze(0)).mul_(scale);
  return at::cat({at::cos(angle), at::sin(angle)}, 1);
}

at::Tensor tokens_of_latents(const at::Tensor& latents, int64_t patch) {
  const int64_t batch = latents.size(0), channels = latents.size(1);
  const int64_t rows = latents.size(2) / patch, columns = latents.size(3) / patch;
  return latents.reshape({batch, channels, rows, patch, columns, patch})
      .permute({0, 2, 4, 1, 3, 5})
      .reshape({batch, rows * columns, channels * patch * patch});
}

at::Tensor latents_of_tokens(const at::Tensor& tokens, int64_t columns, int64_t patch,
                             TokenOrder order) {
  const int64_t batch = tokens.size(0), rows = tokens.size(1) / columns;
  const int64_t channels = tokens.size(2) / (patch * patch);
  const at::Tensor cells =
      order == TokenOrder::pixels_first
          ? tokens.view({batch, rows, columns, patch, patch, channels}).permute({0, 5, 1, 3, 2, 4})
          : tokens.view({batch, rows, columns, channels, patch, patch}).permute({0, 3, 1, 4, 2, 5});
  return cells.reshape({batch, channels, rows * patch, columns * patch});
}

void clip_half(at::Tensor& hidden) {
  constexpr double kLargest = 65504;
  if (hidden.scalar_type() == at::kHalf) hidden.clamp_(-kLargest, kLargest);
}

void add_product(at::Tensor& hidden, const kernels::Linear& product, const at::Tensor& x,
                 const std::optional<at::Tensor>& gate, bool sharded, TensorParallelPort& sums) {
  if (!sharded) {
    if (gate) product.add_gated_to(hidden, x, *gate);
    if (!gate) product.add_to(hidden, x);
    return;
  }
  if (product.quantized()) {
    at::Tensor largest = kernels::largest_of_rows(x);
    sums.largest(largest);
    at::Tensor partial = product.sums(x, largest);
    sums.sum(partial);
    product.add_sums_to(hidden, partial, largest, gate);
    return;
  }
  at::Tensor partial = product(x);
  sums.sum(partial);
  if (gate) kernels::add_gated(hidden, partial, *gate);
  if (!gate) kernels::add(hidden, partial);
}

at::Tensor silu_gated(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::silu(halves[0]).mul_(halves[1]);
}

SiluMlp::SiluMlp(const WeightLoader& weights, const std::string& name, int64_t in, int64_t wide,
                 int64_t out, bool bias)
    : first_(weights.linear(name + ".linear_1", in, wide, bias)),
      second_(weights.linear(name + ".linear_2", wide, out, bias)) {}

at::Tensor SiluMlp::operator()(const at::Tensor& x) const {
  return second_(at::silu(first_(x)));
}

LastLayer::LastLayer(const WeightLoader& weights, int64_t width, int64_t patch, int64_t channels,
                     TokenOrder order)
    : patch_(patch),
      order_(order),
      project_(weights.linear("proj_out", width, patch * patch * channels)) {}

LastLayer::LastLayer(const WeightLoader& weights, int64_t width, int64_t patch, int64_t channels,
                     int64_t stored_channels, TokenOrder order, bool bias)
    : patch_(patch),
      order_(order),
      condition_(weights.linear("norm_out.linear", width, 2 * width, bias)) {
  const int64_t cells = patch * patch;
  if (stored_channels == channels) {
    project_ = weights.linear("proj_out", width, cells * channels, bias);
    return;
  }
  const auto kept = [&](const at::Tensor& rows) {
    return rows.reshape({cells, stored_channels, -1})
        .slice(1, 0, channels)
        .reshape({cells * channels, -1});
  };
  project_ =
      kernels::Linear(kept(weights.whole("proj_out.weight", {cells * stored_channels, width})),
                      kept(weights.get("proj_out.bias", {cells * stored_channels})).view({-1}));
}

at::Tensor LastLayer::modulation(const at::Tensor& embedded) const {
  return condition_(embedded).view({embedded.size(0), 2, embedded.size(1)});
}

at::Tensor LastLayer::operator()(const at::Tensor& hidden, const at::Tensor& modulation,
                                 int64_t columns) const {
  const at::Tensor normal = kernels::norm_modulate(hidden.contiguous(), modulation.select(1, 0),
                                                   modulation.select(1, 1), kEps);
  return latents_of_tokens(project_(normal), columns, patch_, order_);
}

}  // namespace troupe::models
