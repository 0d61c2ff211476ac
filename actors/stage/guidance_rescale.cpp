#include "actors/stage/guidance_rescale.h"

#include <ATen/ATen.h>

#include <utility>

namespace troupe::actors {
namespace {

enum { kCount, kText, kTextSquares, kGuided, kGuidedSquares, kMoments };

at::Tensor deviation(const at::Tensor& moments, int sum, int squares) {
  const at::Tensor count = moments.select(-1, kCount), total = moments.select(-1, sum);
  return ((moments.select(-1, squares) - total * total / count) / (count - 1)).sqrt();
}

}  // namespace

GuidanceRescale::GuidanceRescale(double phi, Shape shape, Sum sum)
    : phi_(phi),
      shape_(shape),
      sum_(std::move(sum)),
      newest_(at::zeros({shape.patches, shape.images, kMoments}, at::kDouble)),
      before_(newest_.clone()) {}

at::Tensor GuidanceRescale::apply(int step, bool whole, const at::Tensor& guided,
                                  const at::Tensor& text, const std::vector<Cut>& cuts) {
  if (std::exchange(step_, step) != step) before_ = newest_.clone();
  at::Tensor fresh = at::zeros_like(newest_);
  std::int64_t row = 0;
  for (const Cut& cut : cuts) {
    const auto values = [&](const at::Tensor& of) {
      return of.slice(2, row, row + cut.rows).flatten(1).to(at::kDouble);
    };
    const at::Tensor own_text = values(text), own_guided = values(guided);
    at::Tensor moments = fresh.select(0, cut.patch);
    moments.select(-1, kCount).add_(static_cast<double>(own_text.size(1)));
    moments.select(-1, kText).add_(own_text.sum(1).cpu());
    moments.select(-1, kTextSquares).add_(own_text.square().sum(1).cpu());
    moments.select(-1, kGuided).add_(own_guided.sum(1).cpu());
    moments.select(-1, kGuidedSquares).add_(own_guided.square().sum(1).cpu());
    row += cut.rows;
  }
  sum_(fresh);
  const at::Tensor computed = fresh.select(-1, kCount).gt(0).unsqueeze(-1);
  newest_ = at::where(computed, fresh, newest_);
  std::vector<at::Tensor> parts;
  row = 0;
  for (const Cut& cut : cuts) {
    at::Tensor counted = newest_;
    if (shape_.step_before && !whole) {
      counted = before_.clone();
      counted.select(0, cut.patch).copy_(fresh.select(0, cut.patch));
    }
    const at::Tensor all = counted.sum(0);
    const at::Tensor factor =
        deviation(all, kText, kTextSquares) / deviation(all, kGuided, kGuidedSquares);
    const at::Tensor own = guided.slice(2, row, row + cut.rows);
    const at::Tensor scale =
        (phi_ * factor + (1 - phi_)).to(guided.device(), at::kFloat).view({-1, 1, 1, 1});
    parts.push_back(own * scale);
    row += cut.rows;
  }
  if (parts.empty()) return guided;
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

}  // namespace troupe::actors
