#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/attention.h"
#include "kernels/simd/isa.h"
#include "tests/kernels/run_maker.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::kernels::testing;
using kernels::KeyValueRun;
using kernels::PartialAttention;

namespace {

constexpr int64_t kWidths[] = {64, 72, 80, 7, 16, 33};

}  // namespace

TEST_CASE("runs of every kind are attended to as one, extrapolated where asked") {
  at::manual_seed(31);
  const int threads = at::get_num_threads();
  for (int round = 0; round < 60; ++round) {
    at::set_num_threads(1 + round % 3);
    const int64_t batch = 1 + round % 3, heads = 1 + round % 5, width = kWidths[round % 6];
    RunMaker make(batch, heads, width, at::kFloat, 100 + round);
    const int64_t queries = 1 + make.below(100);
    const auto runs = make.runs(make.below(7), round % 10 ? 60 : 700);
    CAPTURE(batch);
    CAPTURE(heads);
    CAPTURE(width);
    CAPTURE(queries);
    CAPTURE(runs.size());
    const at::Tensor q = at::randn({queries, batch, heads, width}).transpose(0, 1);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const Exact want = exact(q, runs, scale);
    const at::Tensor out = kernels::attention(q, runs, scale);
    CHECK(error(out, want.out) < 1e-5);
    const PartialAttention part = kernels::attention_part(q, runs, scale);
    CHECK(part.out.equal(out));
    CHECK((part.log_sum_exp.scalar_type() == at::kFloat));
    CHECK(distance(part.log_sum_exp, want.log_sum_exp) < 5e-5);
  }
  at::set_num_threads(threads);
}

TEST_CASE("parts over any split of the keys merge to the whole") {
  at::manual_seed(32);
  for (int round = 0; round < 40; ++round) {
    const int64_t batch = 1 + round % 2, heads = 1 + round % 4, width = kWidths[round % 6];
    RunMaker make(batch, heads, width, at::kFloat, 300 + round);
    const int64_t queries = 1 + make.below(80), keys = 1 + make.below(300);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    const at::Tensor q = at::randn({batch, queries, heads, width}) * 3;
    const KeyValueRun all = make.run(keys);
    const PartialAttention whole = kernels::attention_part(q, {all}, scale);
    PartialAttention merged = kernels::attention_part(q, {}, scale);
    for (int64_t first = 0; first < keys;) {
      const int64_t count = std::min(keys - first, make.below(90));
      const auto cut = [&](const at::Tensor& x) {
        return x.defined() ? x.slice(1, first, first + count) : x;
      };
      const KeyValueRun run{cut(all.k), cut(all.v), cut(all.older_k), cut(all.older_v), all.alpha};
      kernels::merge_attention(merged, kernels::attention_part(q, {run}, scale));
      first += count;
    }
    CHECK(error(merged.out, whole.out.to(at::kDouble)) < 1e-6);
    CHECK(distance(merged.log_sum_exp, whole.log_sum_exp) < 1e-5);
  }
}

TEST_CASE("merging is stable, in place, and passes over sides without keys") {
  at::manual_seed(33);
  const auto part = [](double sum, at::ScalarType dtype) {
    return PartialAttention{at::randn({1, 3, 2, 9}).to(dtype),
                            at::full({1, 3, 2}, sum, at::kFloat)};
  };
  const double nothing = -std::numeric_limits<double>::infinity();
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    CAPTURE(c10::toString(dtype));
    for (const double sum : {-3e38, -2000.0, 0.0, 3000.0, 1e38}) {
      PartialAttention into = part(sum, dtype), other = part(sum, dtype);
      const at::Tensor want = (into.out.to(at::kDouble) + other.out.to(at::kDouble)) / 2;
      const void* place = into.out.data_ptr();
      kernels::merge_attention(into, other);
      CHECK(into.out.data_ptr() == place);
      CHECK((into.out.scalar_type() == dtype));
      CHECK(error(into.out, want) < (dtype == at::kBFloat16 ? 5e-3 : 1e-3));
      CHECK(into.log_sum_exp[0][0][0].item<float>() == doctest::Approx(sum + std::log(2.0)));
    }
    PartialAttention empty = part(nothing, dtype), full = part(1.5, dtype), none = part(0, dtype);
    empty.out.fill_(NAN);
    PartialAttention into{full.out.clone(), full.log_sum_exp.clone()};
    kernels::merge_attention(into, empty);
    CHECK(into.out.equal(full.out));
    CHECK(into.log_sum_exp.equal(full.log_sum_exp));
    into = {empty.out.clone(), empty.log_sum_exp.clone()};
    kernels::merge_attention(into, full);
    CHECK(into.out.equal(full.out));
    CHECK(into.log_sum_exp.equal(full.log_sum_exp));
    into = {empty.out.clone(), empty.log_sum_exp.clone()};
    kernels::merge_attention(into, empty);
    CHECK(into.out.equal(at::zeros_like(into.out)));
    CHECK(into.log_sum_exp.equal(empty.log_sum_exp));
    into = part(-1e30, dtype);
    kernels::merge_attention(into, full);
    CHECK(into.out.equal(full.out));
  }
  PartialAttention bad = part(0, at::kFloat), good = part(1, at::kFloat);
  bad.log_sum_exp.fill_(NAN);
  kernels::merge_attention(good, bad);
  CHECK(good.out.isnan().all().item<bool>());
  PartialAttention wide{at::zeros({1, 3, 2, 10}), at::zeros({1, 3, 2})};
  CHECK_THROWS_WITH_AS(kernels::merge_attention(wide, part(0, at::kFloat)),
                       doctest::Contains("[merge_attention] into [1, 3, 2, 10]"),
                       std::invalid_argument);
}

TEST_CASE("a float32 sum takes parts of half types") {
  at::manual_seed(34);
  RunMaker make(2, 3, 40, at::kBFloat16, 7);
  const at::Tensor q = at::randn({2, 21, 3, 40}).to(at::kBFloat16);
  const auto runs = make.runs(6, 50);
  PartialAttention sum{at::zeros(q.sizes()), at::full({2, 21, 3}, -INFINITY)};
  for (const KeyValueRun& run : runs)
    kernels::merge_attention(sum, kernels::attention_part(q, {run}, 0.2));
  const Exact want = exact(q, runs, 0.2);
  CHECK(error(sum.out, want.out) < 1e-2);
  CHECK(distance(sum.log_sum_exp, want.log_sum_exp) < 2e-2);
}

TEST_CASE("runs, sums and merges in half precision and float64") {
  at::manual_seed(35);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const double bound = dtype == at::kBFloat16 ? 2e-2 : dtype == at::kHalf ? 3e-3 : 1e-6;
    for (int round = 0; round < 8; ++round) {
      const int64_t batch = 1 + round % 2, heads = 1 + round % 3, width = kWidths[round % 6];
      CAPTURE(c10::toString(dtype));
      CAPTURE(width);
      RunMaker make(batch, heads, width, dtype, 500 + round);
      const double scale = 1 / std::sqrt(static_cast<double>(width));
      const at::Tensor q = at::randn({batch, 1 + make.below(70), heads, width}).to(dtype);
      const auto runs = make.runs(make.below(4), 80);
      const Exact want = exact(q, runs, scale);
      const at::Tensor out = kernels::attention(q, runs, scale);
      CHECK((out.scalar_type() == dtype));
      CHECK(out.is_contiguous());
      CHECK(error(out, want.out) < bound);
      PartialAttention part = kernels::attention_part(q, runs, scale);
      CHECK((part.out.scalar_type() == dtype));
      CHECK((part.log_sum_exp.sizes() == q.sizes().slice(0, 3)));
      CHECK(error(part.out, want.out) < bound);
      CHECK(distance(part.log_sum_exp, want.log_sum_exp) < bound);
      const auto more = make.runs(1, 40);
      kernels::merge_attention(part, kernels::attention_part(q, more, scale));
      auto both = runs;
      both.insert(both.end(), more.begin(), more.end());
      CHECK(error(part.out, exact(q, both, scale).out) < bound);
    }
  }
}

TEST_CASE("no heads, no queries, no keys") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = at::randn({2, 5, 3, 16}).to(dtype);
    const KeyValueRun none{q.slice(1, 0, 0), q.slice(1, 0, 0), {}, {}, {}}, some{q, q, {}, {}, {}};
    CHECK_THROWS_WITH_AS(kernels::attention(q, std::vector<KeyValueRun>{}, 1.0),
                         doctest::Contains("has no keys"), std::invalid_argument);
    CHECK_THROWS_AS(kernels::attention(q, {none, none}, 1.0), std::invalid_argument);
    for (const auto& runs : {std::vector<KeyValueRun>{}, std::vector<KeyValueRun>{none, none}}) {
      const PartialAttention part = kernels::attention_part(q, runs, 1.0);
      CHECK(part.out.equal(at::zeros_like(q)));
      CHECK(part.log_sum_exp.equal(at::full({2, 5, 3}, -INFINITY)));
      const at::Tensor empty = q.slice(1, 0, 0);
      CHECK((kernels::attention(empty, runs, 1.0).sizes() == empty.sizes()));
    }
    CHECK(kernels::attention(q, {none, some, none}, 0.3).equal(kernels::attention(q, {some}, 0.3)));
    const at::Tensor headless = q.slice(2, 0, 0);
    CHECK((kernels::attention(headless, headless, headless, 1.0).sizes() == headless.sizes()));
    PartialAttention part =
        kernels::attention_part(headless, {{headless, headless, {}, {}, {}}}, 1.0);
    CHECK((part.log_sum_exp.sizes() == at::IntArrayRef({2, 5, 0})));
    kernels::merge_attention(part, part);
  }
  at::Tensor bias = at::zeros({2, 5});
  bias[1].fill_(-INFINITY);
  const at::Tensor q = at::randn({2, 5, 3, 16});
  CHECK(kernels::attention(q, q, q, 1.0, bias)[1].equal(at::zeros({5, 3, 16})));
}

TEST_CASE("runs that do not fit are refused") {
  const at::Tensor q = at::zeros({2, 5, 3, 16}), k = at::zeros({2, 4, 3, 16});
  const at::Tensor alpha = at::zeros({2, 2});
  using Runs = std::vector<KeyValueRun>;
  const Runs wrong = {{k, q, {}, {}, {}},
                      {k, k.to(at::kBFloat16), {}, {}, {}},
                      {k.slice(2, 1), k.slice(2, 1), {}, {}, {}},
                      {k, {}, {}, {}, {}},
                      {k, k, k, {}, alpha},
                      {k, k, k, k, {}},
                      {k, k, k, q, alpha},
                      {k, k, k, k, at::zeros({2, 3})}};
  for (const KeyValueRun& run : wrong) {
    CHECK_THROWS_WITH_AS(kernels::attention(q, Runs{run}, 1.0),
                         doctest::Contains("[attention] q [2, 5, 3, 16]"), std::invalid_argument);
    CHECK_THROWS_AS(kernels::attention_part(q, {run}, 1.0), std::invalid_argument);
  }
}

TEST_CASE("every instruction set packs runs, sums up and merges alike") {
  at::manual_seed(36);
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  for (const int64_t width : {64, 72, 7, 3, 19}) {
    const int64_t queries = 29, keys = 5 + 64 + 1 + 77 + 300;
    const at::Tensor q = at::randn({1, queries, 1, width}), k = at::randn({1, keys, 1, width}),
                     v = at::randn({1, keys, 1, width}), older_k = at::randn({1, keys, 1, width}),
                     older_v = at::randn({1, keys, 1, width});
    at::Tensor moved_k = k.clone(), moved_v = v.clone();
    std::vector<kernels::simd::RowRun> key_runs, value_runs;
    int64_t first = 0, index = 0;
    for (const int64_t rows : {5, 64, 1, 77, 300}) {
      const float alpha = index++ % 2 ? 0.4f : 0.0f;
      const auto run = [&](const at::Tensor& now, const at::Tensor& older, at::Tensor& moved) {
        moved.slice(1, first, first + rows)
            .add_((now - older).slice(1, first, first + rows), alpha);
        return kernels::simd::RowRun{now.data_ptr<float>() + first * width,
                                     older.data_ptr<float>() + first * width,
                                     width,
                                     width,
                                     rows,
                                     alpha};
      };
      key_runs.push_back(run(k, older_k, moved_k));
      value_runs.push_back(run(v, older_v, moved_v));
      first += rows;
    }
    const Exact want = exact(q, {{moved_k, moved_v, {}, {}, {}}}, 0.2);
    for (int i = 0; i < count; ++i) {
      const kernels::simd::Table& simd = *tables[i];
      CAPTURE(simd.name);
      CAPTURE(width);
      at::Tensor packed_keys = at::full({simd.packed_keys_size(keys, width)}, NAN);
      at::Tensor packed_values = at::full({simd.packed_values_size(keys, width)}, NAN);
      at::Tensor scratch = at::empty({simd.attention_scratch(width)});
      PartialAttention part{at::empty_like(q), at::empty({1, queries, 1})};
      simd.pack_keys(key_runs.data(), 5, width, packed_keys.data_ptr<float>());
      simd.pack_values(value_runs.data(), 5, width, packed_values.data_ptr<float>());
      CHECK_FALSE(packed_keys.isnan().any().item<bool>());
      CHECK_FALSE(packed_values.isnan().any().item<bool>());
      kernels::simd::AttentionTask task{};
      task.q = q.data_ptr<float>();
      task.q_stride = width;
      task.keys = packed_keys.data_ptr<float>();
      task.values = packed_values.data_ptr<float>();
      task.out = part.out.data_ptr<float>();
      task.out_stride = width;
      task.log_sum_exp = part.log_sum_exp.data_ptr<float>();
      task.sum_stride = 1;
      task.queries = queries;
      task.key_count = keys;
      task.width = width;
      task.scale = 0.2f;
      task.scratch = scratch.data_ptr<float>();
      simd.attention(task);
      CHECK(error(part.out, want.out) < 1e-5);
      CHECK(distance(part.log_sum_exp, want.log_sum_exp) < 2e-5);
      const at::Tensor other = at::randn_like(q), other_sums = part.log_sum_exp + 0.7f;
      const double share = 1 / (1 + std::exp(0.7));
      const at::Tensor merged = part.out.to(at::kDouble) * share + other * (1 - share);
      simd.merge_attention(part.out.data_ptr<float>(), part.log_sum_exp.data_ptr<float>(),
                           other.data_ptr<float>(), other_sums.data_ptr<float>(), queries, width);
      CHECK(error(part.out, merged) < 1e-6);
    }
  }
}
