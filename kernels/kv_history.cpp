#include "kernels/kv_history.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>
#include <stdexcept>

#include "kernels/cpu_kernels.h"
#include "kernels/cuda_calls.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {
namespace {

/// Elements of a chunk of rows: chunks are summed in order, whoever computed them.
constexpr int64_t kChunkElements = 32 * 1024;

void check_push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int known,
                const std::optional<at::Tensor>& sums) {
  const auto refuse = [](const auto&... parts) {
    std::ostringstream text;
    text << "[kv_push] ";
    (text << ... << parts);
    throw std::invalid_argument(text.str());
  };
  const int count = static_cast<int>(versions.size());
  if (count < 1 || count > 3) refuse(count, " versions, not 1 to 3");
  if (known < 0 || known > count) refuse(known, " of ", count, " versions hold values");
  if (fresh.dim() != 5 || fresh.size(2) != 2)
    refuse("fresh has shape ", fresh.sizes(), ", not [n, B, 2, H, d]");
  for (const at::Tensor& version : versions) {
    if (version.sizes() != fresh.sizes() || version.scalar_type() != fresh.scalar_type() ||
        version.device() != fresh.device() || !version.is_contiguous())
      refuse("a version is ", version.toString(), ' ', version.sizes(),
             version.is_contiguous() ? "" : " in pieces", ", fresh ", fresh.toString(), ' ',
             fresh.sizes());
  }
  if (!sums) return;
  if (count < 2) refuse("sums need two versions");
  if (sums->sizes() != at::IntArrayRef({fresh.size(1), 2, 2}) ||
      sums->scalar_type() != at::kDouble || sums->device() != fresh.device() ||
      !sums->is_contiguous())
    refuse("sums are ", sums->toString(), ' ', sums->sizes(), ", not float64 [B, 2, 2]");
}

void push_by_library(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int shifts,
                     const at::Tensor& sums) {
  if (sums.defined()) {
    const at::Tensor newest = versions[0].to(at::kFloat);
    const at::Tensor step = newest - versions[1];
    const auto total = [](const at::Tensor& x) { return x.sum({0, 3, 4}, false, at::kDouble); };
    sums.select(2, 0).add_(total((fresh - newest).mul_(step)));
    sums.select(2, 1).add_(total(step * step));
  }
  for (int i = shifts; i > 0; --i)
    versions[i].copy_(versions[i - 1]);
  versions[0].copy_(fresh);
}

/// Converts to float, in a form that compilers turn into vector code, also without F16C.
inline float widened(at::Half x) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  const std::uint32_t magnitude = (x.x & 0x7fffu) << 13, sign = (x.x & 0x8000u) << 16;
  const float value = std::bit_cast<float>(magnitude) * 0x1p112f;
  const std::uint32_t special = (x.x & 0x7c00u) == 0x7c00u ? kExponent : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | special | sign);
}

inline float widened(at::BFloat16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.x) << 16);
}

/// A row of one head in float32.
template <typename T>
const float* widened(const T* from, int64_t width, float* buffer) {
  for (int64_t i = 0; i < width; ++i)
    buffer[i] = widened(from[i]);
  return buffer;
}

template <typename T>
class Push {
 public:
  Push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int shifts,
       const at::Tensor& sums)
      : shifts_(shifts),
        rows_(fresh.size(0)),
        batch_(fresh.size(1)),
        heads_(fresh.size(3)),
        width_(fresh.size(4)),
        fresh_(fresh.const_data_ptr<T>()),
        strides_(fresh.strides()),
        sums_(sums.defined() ? sums.mutable_data_ptr<double>() : nullptr) {
    for (size_t i = 0; i < versions.size(); ++i)
      versions_[i] = versions[i].mutable_data_ptr<T>();
  }

  void run() const {
    const int64_t row_size = batch_ * 2 * heads_ * width_;
    const int64_t step = std::max<int64_t>(1, kChunkElements / row_size);
    const int64_t chunks = (rows_ + step - 1) / step, row_sums = batch_ * 4;
    std::vector<double> partial(sums_ ? chunks * row_sums : 0);
    parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      std::vector<float> buffer(std::is_same_v<T, float> ? 0 : 3 * width_);
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        double* own = sums_ ? partial.data() + chunk * row_sums : nullptr;
        for (int64_t row = chunk * step; row < std::min(rows_, (chunk + 1) * step); ++row)
          push_row(row, own, buffer.data());
      }
    });
    if (!sums_) return;
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      for (int64_t i = 0; i < row_sums; ++i)
        sums_[i] += partial[chunk * row_sums + i];
  }

 private:
  void push_row(int64_t row, double* sums, float* buffer) const {
    const int64_t size = heads_ * width_;
    for (int64_t part = 0; part < batch_ * 2; ++part) {
      const int64_t at = (row * batch_ * 2 + part) * size;
      const T* fresh = fresh_ + row * strides_[0] + part / 2 * strides_[1] + part % 2 * strides_[2];
      if (sums) add_sums(fresh, at, sums + part * 2, buffer);
      for (int i = shifts_; i > 0; --i)
        std::memcpy(versions_[i] + at, versions_[i - 1] + at, size * sizeof(T));
      if (strides_[3] == width_) {
        std::memcpy(versions_[0] + at, fresh, size * sizeof(T));
        continue;
      }
      for (int64_t head = 0; head < heads_; ++head)
        std::memcpy(versions_[0] + at + head * width_, fresh + head * strides_[3],
                    width_ * sizeof(T));
    }
  }

  void add_sums(const T* fresh, int64_t at, double* sums, float* buffer) const {
    const simd::Table& simd = simd::table();
    if constexpr (std::is_same_v<T, float>) {
      simd.difference_sums(fresh, strides_[3], versions_[0] + at, versions_[1] + at, heads_, width_,
                           sums);
    } else {
      for (int64_t head = 0; head < heads_; ++head, at += width_) {
        const float* x = widened(fresh + head * strides_[3], width_, buffer);
        const float* x1 = widened(versions_[0] + at, width_, buffer + width_);
        const float* x2 = widened(versions_[1] + at, width_, buffer + 2 * width_);
        simd.difference_sums(x, width_, x1, x2, 1, width_, sums);
      }
    }
  }

  int shifts_;
  int64_t rows_, batch_, heads_, width_;
  const T* fresh_;
  at::IntArrayRef strides_;
  double* sums_;
  T* versions_[3] = {};
};

}  // namespace

void kv_push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh_in, int known,
             const std::optional<at::Tensor>& sums_in) {
  check_push(versions, fresh_in, known, sums_in);
  if (fresh_in.numel() == 0) return;
  const int shifts = std::min(known, static_cast<int>(versions.size()) - 1);
  const at::Tensor sums = sums_in && known >= 2 ? *sums_in : at::Tensor();
  if (const CudaKernels* cuda = cuda_kernels_for(fresh_in))
    return kv_push_cuda(*cuda, versions, fresh_in, shifts, sums);
  if (!fresh_in.is_cpu() || !use_cpu_kernels())
    return push_by_library(versions, fresh_in, shifts, sums);
  const at::Tensor fresh =
      fresh_in.stride(4) == 1 || fresh_in.size(4) == 1 ? fresh_in : fresh_in.contiguous();
  switch (fresh.scalar_type()) {
    case at::kFloat:
      return Push<float>(versions, fresh, shifts, sums).run();
    case at::kBFloat16:
      return Push<at::BFloat16>(versions, fresh, shifts, sums).run();
    case at::kHalf:
      return Push<at::Half>(versions, fresh, shifts, sums).run();
    default:
      throw std::invalid_argument(std::string("[kv_push] not for ") + fresh.toString());
  }
}

at::Tensor extrapolation_factors(const at::Tensor& sums) {
  if (sums.dim() != 3 || sums.size(1) != 2 || sums.size(2) != 2) {
    std::ostringstream text;
    text << "[extrapolation_factors] sums have shape " << sums.sizes() << ", not [B, 2, 2]";
    throw std::invalid_argument(text.str());
  }
  const at::Tensor numerator = sums.select(2, 0), denominator = sums.select(2, 1);
  const at::Tensor usable =
      (denominator > 0).logical_and_(denominator.isfinite()).logical_and_(numerator.isfinite());
  return (numerator / denominator)
      .clamp_(0, 1)
      .masked_fill_(usable.logical_not_(), 0)
      .to(at::kFloat);
}

}  // namespace troupe::kernels
