#include "models/dit/rotary.h"

#include <ATen/ATen.h>

namespace troupe::models {

at::Tensor rotary_angles(const at::Tensor& positions, int64_t width) {
  const at::Tensor exponent = at::arange(0, width, 2, at::TensorOptions().dtype(at::kDouble))
                                  .div(static_cast<double>(width));
  const at::Tensor frequency = at::reciprocal(at::pow(10000.0, exponent));
  return positions.to(at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
}

RotaryAngles rotary_angles_of_rows(const RotaryAngles& all, const std::vector<TokenRows>& rows,
                                   int64_t columns) {
  if (!all.cosine.defined()) return {};
  if (rows.size() == 1) {
    const int64_t begin = rows[0].begin * columns, end = rows[0].end * columns;
    return {all.cosine.slice(0, begin, end), all.sine.slice(0, begin, end)};
  }
  std::vector<at::Tensor> cosines{all.cosine.slice(0, 0, 0)}, sines{all.sine.slice(0, 0, 0)};
  for (const TokenRows& run : rows) {
    cosines.push_back(all.cosine.slice(0, run.begin * columns, run.end * columns));
    sines.push_back(all.sine.slice(0, run.begin * columns, run.end * columns));
  }
  return {at::cat(cosines), at::cat(sines)};
}

RotaryAngles with_unrotated(const RotaryAngles& turns, int64_t tokens) {
  if (tokens == 0) return turns;
  const int64_t width = turns.cosine.size(1);
  return {at::cat({at::ones({tokens, width}, turns.cosine.options()), turns.cosine}),
          at::cat({at::zeros({tokens, width}, turns.sine.options()), turns.sine})};
}

}  // namespace troupe::models
