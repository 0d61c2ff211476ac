#include "actors/tensor_inspection.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "tests/support/doctest.h"

namespace troupe::actors {
namespace {

constexpr wire::SliceRange kAll{};
constexpr wire::SliceRange at_index(std::int64_t index) {
  return {.begin = index, .end = 0, .whole = false, .single = true};
}
constexpr wire::SliceRange between(std::int64_t begin, std::int64_t end) {
  return {.begin = begin, .end = end, .whole = false, .single = false};
}

}  // namespace

TEST_CASE("a tensor's row has its finite values' figures") {
  const auto row = tensor_row("x", at::tensor({1.0F, 3.0F, NAN, -2.0F, INFINITY}));
  CHECK(row.shape == std::vector<std::int64_t>{5});
  CHECK(row.dtype == "float32");
  CHECK(row.mean == doctest::Approx(2.0 / 3));
  CHECK(row.min == -2);
  CHECK(row.max == 3);
  CHECK(row.not_finite == 2);
  CHECK(tensor_row("x", at::empty({0, 4}, at::kBFloat16)).dtype == "bfloat16");
  CHECK(tensor_row("x", at::full({2}, NAN)).not_finite == 2);
  CHECK(tensor_row("x", at::ones({2}, at::kLong)).dtype == "int64");
}

TEST_CASE("slices of a tensor") {
  const auto tensor = at::arange(24).view({2, 3, 4});
  CHECK(tensor_slice(tensor, {}).values.size() == 24);
  const auto slice = tensor_slice(tensor, {at_index(1), between(1, 0), between(-2, -1)});
  CHECK(slice.shape == std::vector<std::int64_t>{2, 1});
  CHECK(slice.values == std::vector<double>{18, 22});
  const auto one = tensor_slice(tensor, {at_index(-1), at_index(0), at_index(3)});
  CHECK(one.shape.empty());
  CHECK(one.values == std::vector<double>{15});
  CHECK(tensor_slice(tensor, {kAll, at_index(0)}).shape == std::vector<std::int64_t>{2, 4});
  CHECK(tensor_slice(tensor, {between(1, 1)}).values.empty());
  using Ranges = std::vector<wire::SliceRange>;
  for (const auto& wrong :
       {Ranges{at_index(2)}, Ranges{at_index(-3)}, Ranges{between(0, 3)}, Ranges{between(2, 1)},
        Ranges{kAll, kAll, kAll, kAll}, Ranges{between(-9, 1)}}) {
    CHECK_THROWS_AS(tensor_slice(tensor, wrong), std::invalid_argument);
  }
  CHECK_THROWS_AS(tensor_slice(at::zeros({wire::kMaxSliceValues + 1}), {}), std::invalid_argument);
}

}  // namespace troupe::actors
