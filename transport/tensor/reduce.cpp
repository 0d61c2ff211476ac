#include "transport/tensor/reduce.h"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace troupe::tensor {
namespace {

constexpr std::int64_t kBlock = 1024;

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>;

template <typename Accumulator>
Accumulator combine(Accumulator a, Accumulator b, ReduceOp op) {
  if (op == ReduceOp::sum) return a + b;
  return (b > a || b != b) ? b : a;
}

template <typename T>
void reduce(T* out, const std::vector<const void*>& parts, std::int64_t count, ReduceOp op) {
  using Accumulator = std::conditional_t<kIsHalf<T>, float, T>;
  std::array<Accumulator, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    for (std::int64_t i = 0; i < size; ++i)
      block[i] = static_cast<Accumulator>(first[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + begin;
      for (std::int64_t i = 0; i < size; ++i)
        block[i] = combine(block[i], static_cast<Accumulator>(part[i]), op);
    }
    for (std::int64_t i = 0; i < size; ++i)
      out[begin + i] = static_cast<T>(block[i]);
  }
}

}  // namespace

bool is_reducible(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble ||
         (at::isIntegralType(type, /*includeBool=*/false) && at::elementSize(type) <= 8 &&
          type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64);
}

void reduce_in_order(void* out, const std::vector<const void*>& parts, std::int64_t count,
                     at::ScalarType type, ReduceOp op) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type, "all_reduce",
                             [&] { reduce(static_cast<scalar_t*>(out), parts, count, op); });
}

}  // namespace troupe::tensor
