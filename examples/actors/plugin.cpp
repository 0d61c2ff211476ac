// The shared library for `troupe start --plugin`: the classes of the two examples.
#include <numeric>
#include <stdexcept>

#include "counter.h"
#include "ring.h"

troupe::Array RingMember::make(std::int64_t rows, std::int64_t columns) {
  return troupe::Array::of(std::vector<float>(static_cast<std::size_t>(rows * columns), 1.f),
                           {rows, columns});
}

troupe::Array RingMember::scale(troupe::Array tensor) {
  auto numbers = tensor.to<float>();
  for (float& number : numbers)
    number *= factor_;
  return troupe::Array::of(numbers, tensor.shape);
}

float RingMember::sum(troupe::Array tensor) const {
  const auto numbers = tensor.to<float>();
  return static_cast<float>(std::accumulate(numbers.begin(), numbers.end(), 0.0));
}

float RingMember::sum_of_other(troupe::ActorHandle<RingMember> other, std::int64_t rows) {
  const auto tensor = other.call<&RingMember::make>(rows, 8).wait(std::chrono::seconds(10));
  if (!tensor) throw std::runtime_error(tensor.error().what);
  return sum(scale(tensor.value()));
}

TROUPE_PLUGIN(Counter, RingMember)
