#include "models/samplers/table_math.h"

#include <ATen/ATen.h>

#include <cmath>

namespace troupe::models::table {
namespace {

template <typename F>
at::Tensor each(const at::Tensor& x, F&& f) {
  at::Tensor out = x.to(at::kFloat).clone(at::MemoryFormat::Contiguous);
  auto* value = out.mutable_data_ptr<float>();
  for (int64_t i = 0; i < out.numel(); ++i)
    value[i] = static_cast<float>(f(static_cast<double>(value[i])));
  return out;
}

}  // namespace

at::Tensor sqrt(const at::Tensor& x) {
  return each(x, [](double v) { return std::sqrt(v); });
}

at::Tensor log(const at::Tensor& x) {
  return each(x, [](double v) { return std::log(v); });
}

at::Tensor exp(const at::Tensor& x) {
  return each(x, [](double v) { return std::exp(v); });
}

at::Tensor expm1(const at::Tensor& x) {
  return each(x, [](double v) { return std::expm1(v); });
}

at::Tensor linspace(double from, double to, int64_t n) {
  at::Tensor out = at::empty({n}, at::kFloat);
  auto* value = out.mutable_data_ptr<float>();
  const auto first = static_cast<float>(from), last = static_cast<float>(to);
  const float step = n > 1 ? (last - first) / static_cast<float>(n - 1) : 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    value[i] = i < n / 2 ? std::fma(step, static_cast<float>(i), first)
                         : std::fma(-step, static_cast<float>(n - 1 - i), last);
  }
  return out;
}

std::vector<float> to_vector(const at::Tensor& x) {
  const at::Tensor flat = x.contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

}  // namespace troupe::models::table
