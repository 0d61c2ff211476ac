#include "kernels/quantized.h"

#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/cpu_kernels.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {

namespace {

constexpr double kLargestByte = 127;

/// Partial sums of so many products of bytes stay below 2^24, where float32 holds every integer.
constexpr int64_t kExactDepth = 1024;

bool cpu_has_vnni() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

/// LibTorch may run on older instructions than the CPU has, which saturate.
bool library_is_exact() {
  const auto options = at::TensorOptions().dtype(at::kChar);
  const at::Tensor a = at::full({16, 128}, -127, options), b = at::full({16, 128}, 127, options);
  return at::_int_mm(a, b.t()).eq(-127 * 127 * 128).all().item<bool>();
}

}  // namespace

bool has_byte_products() {
  static const bool has = cpu_has_vnni() && library_is_exact();
  return has;
}

QuantizedWeight quantize_weight(const at::Tensor& weight, WeightType type) {
  const at::Tensor wide = weight.to(at::kFloat);
  const double most = type == WeightType::int8 ? kLargestByte : detail::kLargestFp8;
  at::Tensor largest =
      wide.size(1) > 0 ? wide.abs().amax(1) : at::zeros({wide.size(0)}, wide.options());
  const at::Tensor scales = largest / most;
  const at::Tensor scaled =
      wide / at::where(scales > 0, scales, at::ones_like(scales)).unsqueeze(1);
  if (type == WeightType::int8)
    return {type, scaled.round_().clamp_(-kLargestByte, kLargestByte).to(at::kChar), scales};
  return {type, scaled.clamp_(-most, most).to(at::kFloat8_e4m3fn), scales};
}

void require_weight_type(WeightType type, at::Device device) {
  if (type == WeightType::as_computed) return;
  if (type == WeightType::int8) {
    if (device.is_cpu()) return;
    throw std::runtime_error("[weights] int8 is for actors on the CPU, and this one computes on " +
                             device.str() + ": fp8 is what GPUs have");
  }
  const std::string need = "fp8 needs a GPU of compute capability 8.9";
  if (!device.is_cuda())
    throw std::runtime_error("[weights] " + need + ", and this actor computes on " + device.str() +
                             ": int8 is what CPUs have");
  try {
    const at::Tensor ones = at::ones({16, 16}, at::TensorOptions().device(device));
    const at::Tensor sums =
        detail::fp8_sums(ones, largest_of_rows(ones), ones.to(at::kFloat8_e4m3fn));
    if (sums.eq(16 * detail::kLargestFp8).all().item<bool>()) return;
    throw std::runtime_error("products are wrong");
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw std::runtime_error("[weights] " + need + "; a product on " + device.str() +
                             " failed: " + text.substr(0, text.find('\n')));
  }
}

at::Tensor largest_of_rows(const at::Tensor& x) {
  const int64_t width = x.size(-1), rows = width > 0 ? x.numel() / width : 0;
  if (width == 0) {
    int64_t count = 1;
    for (int64_t i = 0; i + 1 < x.dim(); ++i)
      count *= x.size(i);
    return at::zeros({count}, x.options().dtype(at::kFloat));
  }
  if (!x.is_cpu()) {
    const at::Tensor wide = x.reshape({rows, width}).to(at::kFloat);
    return rows > 0 ? wide.abs().amax(1) + (wide * 0).sum(1) : at::zeros({0}, wide.options());
  }
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  at::Tensor largest = at::empty({rows}, wide.options());
  const simd::Table& simd = simd::table();
  const float* from = wide.const_data_ptr<float>();
  float* to = largest.mutable_data_ptr<float>();
  parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    simd.largest_of_rows(from + begin * width, end - begin, width, to + begin);
  });
  return largest;
}

at::Tensor bytes_of_rows(const at::Tensor& x, const at::Tensor& largest) {
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  const int64_t rows = largest.size(0), width = wide.size(-1);
  at::Tensor bytes = at::empty({rows, width}, wide.options().dtype(at::kChar));
  const simd::Table& simd = simd::table();
  const float* from = wide.const_data_ptr<float>();
  const float* most = largest.const_data_ptr<float>();
  int8_t* to = bytes.mutable_data_ptr<int8_t>();
  parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    simd.quantize_rows(from + begin * width, end - begin, width, most + begin, to + begin * width);
  });
  return bytes;
}

at::Tensor bytes_of_rows(const at::Tensor& x, at::Tensor* largest) {
  const int64_t width = x.size(-1);
  if (width == 0) {
    *largest = largest_of_rows(x);
    return bytes_of_rows(x, *largest);
  }
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  const int64_t rows = wide.numel() / width;
  *largest = at::empty({rows}, wide.options());
  at::Tensor bytes = at::empty({rows, width}, wide.options().dtype(at::kChar));
  const simd::Table& simd = simd::table();
  const float* from = wide.const_data_ptr<float>();
  float* most = largest->mutable_data_ptr<float>();
  int8_t* to = bytes.mutable_data_ptr<int8_t>();
  parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      simd.largest_of_rows(from + row * width, 1, width, most + row);
      simd.quantize_rows(from + row * width, 1, width, most + row, to + row * width);
    }
  });
  return bytes;
}

at::Tensor quantized_sums(const at::Tensor& x, const at::Tensor& largest,
                          const QuantizedWeight& weight) {
  if (weight.type == WeightType::fp8) return detail::fp8_sums(x, largest, weight.values);
  return detail::byte_products(bytes_of_rows(x, largest), weight.values);
}

namespace detail {

at::Tensor byte_products(const at::Tensor& a, const at::Tensor& b) {
  if (a.size(0) == 0 || a.size(1) == 0 || b.size(0) == 0)
    return at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  // LibTorch 2.11 reads past columns of one input.
  const bool library = has_byte_products() && a.size(1) > 1;
  return library ? at::_int_mm(a, b.t()) : byte_products_in_floats(a, b);
}

at::Tensor byte_products_in_floats(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor all = at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  for (int64_t first = 0; first < a.size(1); first += kExactDepth) {
    const auto part = [&](const at::Tensor& of) {
      return of.slice(1, first, first + kExactDepth).to(at::kFloat);
    };
    all += at::mm(part(a), part(b).t()).to(at::kInt);
  }
  return all;
}

at::Tensor fp8_sums(const at::Tensor& x, const at::Tensor& largest, const at::Tensor& values) {
  constexpr int64_t kMultiple = 16;
  const int64_t rows = largest.size(0), depth = values.size(1), out = values.size(0);
  const auto options = x.options().dtype(at::kFloat);
  if (rows == 0 || depth == 0 || out == 0) return at::zeros({rows, out}, options);
  const at::Tensor factors =
      at::where(largest > 1e-35, kLargestFp8 / largest, at::zeros_like(largest));
  at::Tensor scaled = x.reshape({rows, depth}).to(at::kFloat) * factors.unsqueeze(1);
  scaled.clamp_(-kLargestFp8, kLargestFp8);
  const auto padded = [](const at::Tensor& of, int64_t more_columns, int64_t more_rows) {
    if (more_columns == 0 && more_rows == 0) return of;
    return at::constant_pad_nd(of, {0, more_columns, 0, more_rows});
  };
  const int64_t more = (kMultiple - depth % kMultiple) % kMultiple;
  const int64_t more_out = (kMultiple - out % kMultiple) % kMultiple;
  const at::Tensor a = padded(scaled, more, 0).to(at::kFloat8_e4m3fn);
  // Padding goes through another type: e4m3 has no fill of its own.
  const at::Tensor b = more + more_out == 0
                           ? values
                           : padded(values.to(at::kHalf), more, more_out).to(at::kFloat8_e4m3fn);
  const at::Tensor one = at::ones({}, options);
  const at::Tensor sums =
      at::_scaled_mm(a, b.t(), one, one, std::nullopt, std::nullopt, at::kFloat);
  return more_out == 0 ? sums : sums.slice(1, 0, out);
}

}  // namespace detail

}  // namespace troupe::kernels
