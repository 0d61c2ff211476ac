#include "models/encoders/qwen_vision_tower.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/encoders/rotary_halves.h"
#include "models/image/resize.h"
#include "models/spec/resolution_bins.h"

namespace troupe::models {
namespace {

constexpr double kVisionEps = 1e-6;

/// Brings values of a grid's places [rows, columns] into the order of tokens, and of the patches
/// within each: [tokens, merge²].
at::Tensor by_token(const at::Tensor& grid, std::int64_t merge) {
  return grid.view({grid.size(0) / merge, merge, grid.size(1) / merge, merge})
      .transpose(1, 2)
      .reshape({-1, merge * merge});
}

}  // namespace

VisionPatches vision_patches(const spec::QwenVisionSpec& spec, const at::Tensor& rgb) {
  const auto size = spec::seen_size(spec, {rgb.size(0), rgb.size(1)});
  const std::int64_t side = spec.patch_size, merge = spec.spatial_merge_size;
  const at::Tensor mean = at::tensor(spec.image_mean, at::kDouble).to(at::kFloat);
  const at::Tensor deviation = at::tensor(spec.image_std, at::kDouble).to(at::kFloat);
  const at::Tensor pixels =
      (resize_bicubic(rgb, size.height, size.width).to(at::kFloat) / 255.0 - mean) / deviation;
  const std::int64_t rows = size.height / side, columns = size.width / side;
  // Rows and columns of tokens, of a token's patches, and of a patch's pixels.
  const at::Tensor patches =
      pixels.view({rows / merge, merge, side, columns / merge, merge, side, 3})
          .permute({0, 3, 1, 4, 6, 2, 5})
          .unsqueeze(5)
          .expand({-1, -1, -1, -1, -1, spec.temporal_patch_size, -1, -1})
          .reshape({rows * columns, spec.patch_values()});
  return {patches, rows, columns};
}

QwenVisionTower::Grid QwenVisionTower::grid_of(std::int64_t rows, std::int64_t columns) const {
  const std::int64_t merge = spec_.spatial_merge_size;
  const std::int64_t window = spec_.window_size / merge / spec_.patch_size;
  const std::int64_t token_rows = rows / merge, token_columns = columns / merge;
  // Windows by the number of their tokens: those at the right and lower ends are smaller.
  std::map<std::int64_t, std::vector<std::int64_t>> of_size;
  for (std::int64_t top = 0; top < token_rows; top += window) {
    for (std::int64_t left = 0; left < token_columns; left += window) {
      const auto bottom = std::min(top + window, token_rows);
      const auto right = std::min(left + window, token_columns);
      auto& tokens = of_size[(bottom - top) * (right - left)];
      for (std::int64_t row = top; row < bottom; ++row)
        for (std::int64_t column = left; column < right; ++column)
          tokens.push_back(row * token_columns + column);
    }
  }
  Grid grid;
  std::vector<std::int64_t> order;
  for (const auto& [size, tokens] : of_size) {
    grid.windows.push_back({static_cast<std::int64_t>(tokens.size()) / size, size * merge * merge});
    order.insert(order.end(), tokens.begin(), tokens.end());
  }
  grid.order = at::tensor(order, at::kLong);

  const auto options = at::TensorOptions().dtype(at::kFloat);
  const std::int64_t half = spec_.hidden_size / spec_.num_heads / 2;
  const at::Tensor steps =
      at::pow(spec_.rope_theta, at::arange(0, half, 2, options) / half).reciprocal();
  const auto angles = [&](const at::Tensor& places) {
    const auto of_tokens = by_token(places.expand({rows, columns}), merge);
    return at::outer(of_tokens.index_select(0, grid.order).flatten(), steps);
  };
  const at::Tensor of_both = at::cat({angles(at::arange(rows, options).unsqueeze(1)),
                                      angles(at::arange(columns, options).unsqueeze(0))},
                                     1);
  const at::Tensor both = at::cat({of_both, of_both}, 1).to(device_);
  grid.cosine = at::cos(both);
  grid.sine = at::sin(both);
  grid.order = grid.order.to(device_);
  return grid;
}

at::Tensor QwenVisionTower::norm(const at::Tensor& states, const std::string& name) const {
  const at::Tensor wide = states.to(at::kFloat);
  const at::Tensor inverse = (wide.pow(2).mean(-1, /*keepdim=*/true) + kVisionEps).rsqrt();
  return weights_.get(name + ".weight") * (wide * inverse).to(dtype_);
}

at::Tensor QwenVisionTower::linear(const at::Tensor& states, const std::string& name) const {
  return at::linear(states, weights_.get(name + ".weight"), weights_.get(name + ".bias"));
}

at::Tensor QwenVisionTower::attend(const at::Tensor& states, const Grid& grid, bool whole,
                                   const std::string& prefix) const {
  const std::int64_t patches = states.size(0);
  const at::Tensor qkv = linear(norm(states, prefix + "norm1"), prefix + "attn.qkv")
                             .view({patches, 3, spec_.num_heads, -1})
                             .permute({1, 2, 0, 3});  // [3, H, n, d]
  const auto turn = [&](std::int64_t which) {
    return turned_halves(qkv[which].to(at::kFloat), grid.cosine, grid.sine).to(dtype_);
  };
  const at::Tensor query = turn(0), key = turn(1), value = qkv[2];
  const std::vector<Windows> all{{1, patches}};
  std::vector<at::Tensor> seen;
  std::int64_t begin = 0;
  for (const auto& [count, size] : whole ? all : grid.windows) {
    const auto own = [&, begin = begin, count = count, size = size](const at::Tensor& of) {
      return of.narrow(1, begin, count * size)
          .reshape({spec_.num_heads, count, size, -1})
          .transpose(0, 1);
    };
    seen.push_back(at::scaled_dot_product_attention(own(query), own(key), own(value))
                       .transpose(1, 2)
                       .reshape({count * size, -1}));
    begin += count * size;
  }
  return states + linear(at::cat(seen), prefix + "attn.proj");
}

at::Tensor QwenVisionTower::feed_forward(const at::Tensor& states,
                                         const std::string& prefix) const {
  const at::Tensor normal = norm(states, prefix + "norm2");
  at::Tensor wide = at::silu(linear(normal, prefix + "mlp.gate_proj"));
  wide.mul_(linear(normal, prefix + "mlp.up_proj"));
  return states + linear(wide, prefix + "mlp.down_proj");
}

at::Tensor QwenVisionTower::merge(const at::Tensor& states) const {
  const std::int64_t of_token = spec_.spatial_merge_size * spec_.spatial_merge_size;
  const at::Tensor tokens =
      norm(states, "visual.merger.ln_q").view({states.size(0) / of_token, -1});
  return linear(at::gelu(linear(tokens, "visual.merger.mlp.0")), "visual.merger.mlp.2");
}

std::vector<at::Tensor> QwenVisionTower::encode_each(const std::vector<VisionPatches>& pictures,
                                                     const std::function<void()>& on_block) const {
  const std::int64_t of_token = spec_.spatial_merge_size * spec_.spatial_merge_size;
  std::vector<Grid> grids;
  std::vector<at::Tensor> states;
  const at::Tensor projection = weights_.get("visual.patch_embed.proj.weight").flatten(1);
  for (const auto& [values, rows, columns] : pictures) {
    grids.push_back(grid_of(rows, columns));
    const at::Tensor patches = at::linear(values.to(device_, dtype_), projection);
    states.push_back(patches.view({-1, of_token, spec_.hidden_size})
                         .index_select(0, grids.back().order)
                         .view({-1, spec_.hidden_size}));
  }
  weights_.end_block();
  for (std::int64_t block = 0; block < spec_.depth; ++block) {
    const std::string prefix = spec::qwen_vision_block_prefix(block);
    const bool whole = std::ranges::count(spec_.fullatt_block_indexes, block) > 0;
    for (std::size_t i = 0; i < states.size(); ++i)
      states[i] = feed_forward(attend(states[i], grids[i], whole, prefix), prefix);
    weights_.end_block();
    on_block();
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const at::Tensor merged = merge(states[i]);
    states[i] = at::empty_like(merged).index_copy_(0, grids[i].order, merged);
  }
  weights_.end_block();
  return states;
}

}  // namespace troupe::models
