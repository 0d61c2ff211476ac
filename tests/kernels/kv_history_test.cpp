#include "kernels/kv_history.h"

#include <random>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/simd/isa.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

double largest_ratio(const at::Tensor& got, const at::Tensor& want) {
  return ((got - want).abs() / (want.abs() + 1e-12)).max().item<double>();
}

/// A projection [B, n, 3, H, d] without its queries, token first.
at::Tensor fresh_rows(int64_t rows, int64_t batch, int64_t heads, int64_t width,
                      at::ScalarType dtype) {
  return at::randn({batch, rows, 3, heads, width}).to(dtype).slice(2, 1).permute({1, 0, 2, 3, 4});
}

at::Tensor exact_sums(const at::Tensor& x, const at::Tensor& x1, const at::Tensor& x2) {
  const at::Tensor newest = x1.to(at::kDouble), step = newest - x2.to(at::kDouble);
  const at::Tensor products = (x.to(at::kDouble) - newest) * step;
  return at::stack({products.sum({0, 3, 4}), (step * step).sum({0, 3, 4})}, 2);
}

}  // namespace

TEST_CASE("a push shifts what is known, takes the fresh rows and sums differences") {
  at::manual_seed(41);
  std::mt19937 random(41);
  const int threads = at::get_num_threads();
  constexpr int64_t kWidths[] = {64, 72, 80, 7};
  for (int round = 0; round < 90; ++round) {
    at::set_num_threads(1 + round % 3);
    const auto dtype = round % 3 == 0 ? at::kFloat : round % 3 == 1 ? at::kBFloat16 : at::kHalf;
    const int64_t rows = random() % (round % 7 ? 40 : 500), batch = 1 + random() % 3,
                  heads = 1 + random() % 4, width = kWidths[random() % 4];
    const int count = 1 + static_cast<int>(random() % 3);
    const int known = static_cast<int>(random() % (count + 1));
    const bool summed = count > 1 && random() % 2;
    CAPTURE(c10::toString(dtype));
    CAPTURE(rows);
    CAPTURE(count);
    CAPTURE(known);
    std::vector<at::Tensor> versions, before;
    for (int i = 0; i < count; ++i) {
      const at::Tensor store = at::randn({rows + 4, batch, 2, heads, width}).to(dtype);
      versions.push_back(store.slice(0, 3, 3 + rows));
      if (i >= known) versions[i].fill_(NAN);
      before.push_back(versions[i].clone());
    }
    at::Tensor fresh = fresh_rows(rows, batch, heads, width, dtype);
    if (round % 4 == 3) fresh = fresh.transpose(3, 4).contiguous().transpose(3, 4);
    const at::Tensor start = at::randn({batch, 2, 2}, at::kDouble), sums = start.clone();
    kernels::kv_push(versions, fresh, known,
                     summed ? std::optional<at::Tensor>(sums) : std::nullopt);
    CHECK(versions[0].equal(fresh));
    for (int i = 1; i < count && i <= known; ++i)
      CHECK(versions[i].equal(before[i - 1]));
    if (summed && known >= 2) {
      CHECK(largest_ratio(sums, start + exact_sums(fresh, before[0], before[1])) < 1e-4);
    } else {
      CHECK(sums.equal(start));
    }
  }
  at::set_num_threads(threads);
}

TEST_CASE("sums are the same with any number of threads, and alike however heads are split") {
  at::manual_seed(42);
  const int threads = at::get_num_threads();
  const int64_t rows = 700, batch = 2, heads = 6, width = 72;
  const at::Tensor x1 = at::randn({rows, batch, 2, heads, width}),
                   x2 = x1 + 0.1 * at::randn_like(x1), fresh = x1 - 0.1 * at::randn_like(x1);
  const auto sums_of = [&](int64_t first_head, int64_t head_count) {
    const auto heads_of = [&](const at::Tensor& x) {
      return x.narrow(3, first_head, head_count).clone(at::MemoryFormat::Contiguous);
    };
    const at::Tensor sums = at::zeros({batch, 2, 2}, at::kDouble);
    kernels::kv_push({heads_of(x1), heads_of(x2)}, fresh.narrow(3, first_head, head_count), 2,
                     sums);
    return sums;
  };
  at::set_num_threads(1);
  const at::Tensor one = sums_of(0, heads);
  for (const int count : {2, 3, 5}) {
    at::set_num_threads(count);
    CHECK(sums_of(0, heads).equal(one));
  }
  CHECK(largest_ratio(one, exact_sums(fresh, x1, x2)) < 1e-6);
  CHECK(largest_ratio(sums_of(0, 1) + sums_of(1, 3) + sums_of(4, 2), one) < 1e-13);
  at::set_num_threads(threads);
}

TEST_CASE("every value of the half types counts as what it is") {
  const at::Tensor bits = at::arange(0, 65536, at::kInt).to(at::kShort);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor x = bits.view(dtype);
    x = x.masked_select(x.isfinite() & (x.abs() < 1e15));
    const int64_t count = x.numel();
    const at::Tensor fresh = x.view({count, 1, 1, 1, 1}).expand({count, 1, 2, 1, 1});
    for (const double step : {1.0, 1e-6}) {
      // The numerator is a sum over x alone where x1 = 0 and x2 = -step.
      const at::Tensor newest = at::zeros({count, 1, 2, 1, 1}, dtype),
                       older = at::full({count, 1, 2, 1, 1}, -step, dtype);
      const at::Tensor positive = fresh.abs(), sums = at::zeros({1, 2, 2}, at::kDouble);
      const at::Tensor want = exact_sums(positive, newest, older);
      kernels::kv_push({newest, older}, positive, 2, sums);
      CHECK(largest_ratio(sums, want) < 1e-6);
    }
    const at::Tensor small = x.masked_select(x.abs() < 1e-4).abs();
    const int64_t rows = small.numel();
    const at::Tensor sums = at::zeros({1, 2, 2}, at::kDouble),
                     newest = at::zeros({rows, 1, 2, 1, 1}, dtype),
                     older = at::full({rows, 1, 2, 1, 1}, -1, dtype),
                     rising = small.view({rows, 1, 1, 1, 1}).expand({rows, 1, 2, 1, 1});
    const at::Tensor want = exact_sums(rising, newest, older);
    kernels::kv_push({newest, older}, rising, 2, sums);
    CHECK(largest_ratio(sums, want) < 1e-6);
  }
  for (const float odd : {NAN, INFINITY, -INFINITY}) {
    const at::Tensor newest = at::zeros({1, 1, 2, 1, 1}, at::kHalf),
                     older = at::ones({1, 1, 2, 1, 1}, at::kHalf),
                     sums = at::zeros({1, 2, 2}, at::kDouble);
    kernels::kv_push({newest, older}, at::full({1, 1, 2, 1, 1}, odd, at::kHalf), 2, sums);
    const double numerator = sums[0][0][0].item<double>();
    CHECK((std::isnan(odd) ? std::isnan(numerator) : numerator == -odd));
  }
}

TEST_CASE("factors lie between 0 and 1") {
  at::Tensor sums = at::zeros({4, 2, 2}, at::kDouble);
  const auto set = [&](int item, int part, double numerator, double denominator) {
    sums[item][part][0] = numerator;
    sums[item][part][1] = denominator;
  };
  set(0, 0, 1, 4);
  set(0, 1, 5, 4);
  set(1, 0, -3, 4);
  set(1, 1, 0, 0);
  set(2, 0, 1, 0);
  set(2, 1, 1, INFINITY);
  set(3, 0, NAN, 2);
  set(3, 1, NAN, NAN);
  const at::Tensor factors = kernels::extrapolation_factors(sums);
  CHECK(factors.equal(at::tensor({0.25f, 1.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f}).view({4, 2})));
  CHECK_THROWS_AS(kernels::extrapolation_factors(at::zeros({2, 2})), std::invalid_argument);
}

TEST_CASE("every instruction set sums alike") {
  at::manual_seed(43);
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  for (const int64_t width : {64, 72, 7, 1}) {
    const at::Tensor x = at::randn({5, 1, 1, 3, width}), x1 = at::randn({5, 1, 1, 1, width}),
                     x2 = at::randn({5, 1, 1, 1, width});
    const at::Tensor want = exact_sums(x.slice(3, 1, 2), x1, x2);
    for (int i = 0; i < count; ++i) {
      CAPTURE(tables[i]->name);
      at::Tensor sums = at::zeros({1, 1, 2}, at::kDouble);
      tables[i]->difference_sums(x.data_ptr<float>() + width, 3 * width, x1.data_ptr<float>(),
                                 x2.data_ptr<float>(), 5, width, sums.data_ptr<double>());
      CHECK(largest_ratio(sums, want) < 1e-4);
    }
  }
}

TEST_CASE("pushes that do not fit are refused") {
  const at::Tensor version = at::zeros({4, 2, 2, 3, 8}), fresh = at::zeros({4, 2, 2, 3, 8});
  const at::Tensor sums = at::zeros({2, 2, 2}, at::kDouble);
  const auto refused = [&](std::vector<at::Tensor> versions, const at::Tensor& rows, int known,
                           std::optional<at::Tensor> into, const char* text) {
    CHECK_THROWS_WITH_AS(kernels::kv_push(versions, rows, known, into), doctest::Contains(text),
                         std::invalid_argument);
  };
  refused({}, fresh, 0, std::nullopt, "0 versions");
  refused({version, version, version, version}, fresh, 0, std::nullopt, "4 versions");
  refused({version}, fresh, 2, std::nullopt, "2 of 1");
  refused({version}, fresh.slice(0, 1), 0, std::nullopt, "fresh CPUFloatType [3, 2, 2, 3, 8]");
  refused({version}, fresh.to(at::kHalf), 0, std::nullopt, "CPUHalfType");
  refused({version.transpose(0, 1)}, fresh.transpose(0, 1), 0, std::nullopt, "");
  refused({version}, fresh, 1, sums, "two versions");
  refused({version, version}, fresh, 1, sums.to(at::kFloat), "float64 [B, 2, 2]");
  refused({version, version}, fresh, 1, sums.slice(0, 1), "float64 [B, 2, 2]");
}
