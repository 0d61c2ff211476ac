// The CPU's bodies of the kernels that nvcc has compiled into the product's NCCL library: launches
// come through the runtime's own way, registration and lazy loading included.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>

#include "tests/gpu/pretend/machine.h"

namespace pretend {
namespace {

template <typename T>
void reduce(const T* parts, int ranks, std::int64_t count, T* out, bool largest) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (std::int64_t i = 0; i < count; ++i) {
    Wide value = static_cast<Wide>(parts[i]);
    for (int rank = 1; rank < ranks; ++rank) {
      const Wide next = static_cast<Wide>(parts[rank * count + i]);
      value = !largest ? value + next : value > next || std::isnan(value) ? value : next;
    }
    out[i] = static_cast<T>(value);
  }
}

/// reduce_parts<T, largest>(parts, ranks, count, out) of ordered_reduce.cu.
template <typename T>
Command ordered_reduce(const std::string& name, void** arguments) {
  const auto* parts = *static_cast<const T**>(arguments[0]);
  const int ranks = *static_cast<int*>(arguments[1]);
  const std::int64_t count = *static_cast<std::int64_t*>(arguments[2]);
  T* out = *static_cast<T**>(arguments[3]);
  const bool largest = name.find("Lb1E") != std::string::npos;
  Command command;
  command.name = "ordered_reduce";
  command.ranges = {{parts, ranks * count * sizeof(T), false}, {out, count * sizeof(T), true}};
  command.run = [=] {
    reduce(parts, ranks, count, out, largest);
    return true;
  };
  return command;
}

const bool given = [] {
  give_body("reduce_partsIfLb", ordered_reduce<float>);
  give_body("reduce_partsIdLb", ordered_reduce<double>);
  give_body("reduce_partsI6__halfLb", ordered_reduce<c10::Half>);
  give_body("reduce_partsI13__nv_bfloat16Lb", ordered_reduce<c10::BFloat16>);
  return true;
}();

}  // namespace
}  // namespace pretend
