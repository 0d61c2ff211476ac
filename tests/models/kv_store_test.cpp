#include "models/dit/kv_store.h"

#include <ATen/ATen.h>

#include <random>

#include "kernels/kv_history.h"
#include "models/dit/ports.h"
#include "tests/models/kv_rule.h"
#include "tests/models/kv_seen.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using models::testing::apart;
using models::testing::DriftingTokens;
using models::testing::KvRule;
using models::testing::plain_attention;
using models::testing::seen;
using models::testing::Seen;
using Freshness = KvStore::Freshness;

namespace {

KvStore store_of(Freshness freshness, bool predicts, int64_t tokens = 8) {
  return KvStore({{0, 1}, 1, tokens, 1, 2, freshness, predicts}, at::kFloat, at::kCPU);
}

/// Keys and values of a run whose every element is `value`.
void put(KvStore& store, int step, TokenRun run, float value, bool fits = true) {
  store.put(0, step, {run}, at::full({run.size(), 1, 2, 1, 2}, value), fits);
}

float newest(const KvStore& store, int64_t token, int version = 0) {
  const auto runs = store.runs(0, {{{token, token + 1}, version, false}}, {});
  return runs.at(0).k.max().item<float>();
}

}  // namespace

TEST_CASE("local attention is plain attention") {
  at::manual_seed(31);
  for (const auto& [batch, tokens, heads, dim] :
       {std::tuple{1, 1, 1, 4}, {2, 37, 3, 16}, {3, 5, 2, 7}, {1, 0, 2, 8}, {2, 4, 0, 8}}) {
    const at::Tensor wide = at::randn({batch, tokens, 3, heads, dim + 3});
    const at::Tensor qkv = wide.slice(4, 0, dim);
    LocalAttention local;
    const at::Tensor out = local.attend(0, qkv);
    CHECK(out.is_contiguous());
    REQUIRE(out.sizes() == at::IntArrayRef({batch, tokens, heads, dim}));
    if (out.numel() == 0) continue;
    CHECK(apart(out, plain_attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2))) < 1e-5);
  }
}

TEST_CASE("put moves a row's values one version back, and only that row's") {
  for (const bool predicts : {false, true}) {
    auto store = store_of(Freshness::step_before, predicts);
    put(store, 0, {0, 8}, 1);
    put(store, 1, {2, 5}, 2);
    put(store, 2, {3, 8}, 3);
    CHECK(newest(store, 0) == 1);
    CHECK(newest(store, 2) == 2);
    CHECK(newest(store, 2, 1) == 1);
    CHECK(newest(store, 4) == 3);
    CHECK(newest(store, 4, 1) == 2);
    CHECK(newest(store, 7) == 3);
    CHECK(newest(store, 7, 1) == 1);
    if (predicts) CHECK(newest(store, 4, 2) == 1);
  }
}

TEST_CASE("pipefusion attends to this step's rows where they exist, to the step before elsewhere") {
  auto store = store_of(Freshness::newest, true);
  put(store, 0, {0, 3}, 1);
  CHECK(seen(store, 0, {{0, 3}}).empty());  // the others were never computed
  put(store, 0, {3, 6}, 1);
  CHECK(seen(store, 0, {{3, 6}}) == std::vector<Seen>{{{0, 3}, 0, false}});
  put(store, 1, {0, 3}, 2);
  CHECK(seen(store, 1, {{0, 3}}) == std::vector<Seen>{{{3, 6}, 0, false}});  // one value only
  put(store, 1, {3, 8}, 2);
  CHECK(seen(store, 1, {{3, 8}}) == std::vector<Seen>{{{0, 3}, 0, false}});
  put(store, 2, {1, 3}, 3);
  // 0 and 3 to 5 have two old values, 6 and 7 one.
  CHECK(seen(store, 2, {{1, 3}}) ==
        std::vector<Seen>{{{0, 1}, 0, true}, {{3, 6}, 0, true}, {{6, 8}, 0, false}});
  CHECK(seen(store, 2, {{1, 2}}) ==
        std::vector<Seen>{
            {{0, 1}, 0, true}, {{2, 3}, 0, false}, {{3, 6}, 0, true}, {{6, 8}, 0, false}});
  CHECK(KvStore::needs_factors(store.choose(0, 2, {{1, 3}})));
  CHECK_FALSE(KvStore::needs_factors(store.choose(0, 2, {{0, 1}, {3, 6}})));
  CHECK_FALSE(KvStore::needs_factors({}));
}

TEST_CASE("distrifusion attends to the step before, also where this step's rows exist") {
  auto store = store_of(Freshness::step_before, true);
  put(store, 0, {0, 4}, 1);
  CHECK(seen(store, 0, {{4, 8}}).empty());  // of this very step
  put(store, 0, {4, 8}, 1);
  put(store, 1, {0, 4}, 2);
  CHECK(seen(store, 1, {{0, 4}}) == std::vector<Seen>{{{4, 8}, 0, false}});
  put(store, 1, {4, 8}, 2);
  CHECK(seen(store, 1, {{4, 8}}) == std::vector<Seen>{{{0, 4}, 1, false}});
  put(store, 2, {0, 4}, 3);
  CHECK(seen(store, 2, {{0, 4}}) == std::vector<Seen>{{{4, 8}, 0, true}});
  put(store, 2, {4, 8}, 3);
  CHECK(seen(store, 2, {{4, 8}}) == std::vector<Seen>{{{0, 4}, 1, true}});
  const auto runs = store.runs(0, store.choose(0, 2, {{4, 8}}), at::ones({1, 2}));
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].v.sizes() == at::IntArrayRef({1, 4, 1, 2}));
  CHECK(at::equal(runs[0].v, at::full({1, 4, 1, 2}, 2.0f)));
  CHECK(at::equal(runs[0].older_k, at::full({1, 4, 1, 2}, 1.0f)));
}

TEST_CASE("stale rows are never extrapolated, and no second value is kept for them") {
  for (const auto freshness : {Freshness::newest, Freshness::step_before}) {
    auto store = store_of(freshness, false);
    for (int step = 0; step < 4; ++step)
      put(store, step, {0, 8}, static_cast<float>(step));
    put(store, 4, {0, 4}, 4);
    CHECK_FALSE(KvStore::needs_factors(store.choose(0, 4, {{0, 4}})));
    const int versions = freshness == Freshness::newest ? 1 : 2;
    CHECK(store.bytes() == versions * 8 * 2 * 2 * 4);
    CHECK(store_of(freshness, true).bytes() == (versions + 1) * 8 * 2 * 2 * 4);
  }
}

TEST_CASE("sums run on within a step for pipefusion, and are of the own patch for distrifusion") {
  const auto sums_after = [](Freshness freshness, bool fits) {
    auto store = store_of(freshness, true);
    put(store, 0, {0, 8}, 1, false);
    put(store, 1, {0, 8}, 3, false);
    put(store, 2, {0, 3}, 4, fits);  // x − x1 = 1, x1 − x2 = 2, two elements a token
    put(store, 2, {3, 8}, 4, fits);
    return store.sums(0).clone();
  };
  const auto expected = [](double tokens) {
    return at::tensor({tokens * 2 * 2, tokens * 2 * 4}, at::kDouble).expand({1, 2, 2});
  };
  CHECK(at::equal(sums_after(Freshness::newest, true), expected(8)));
  CHECK(at::equal(sums_after(Freshness::step_before, true), expected(5)));
  CHECK(at::equal(sums_after(Freshness::newest, false), expected(0)));

  auto store = store_of(Freshness::newest, true);
  for (int step = 0; step < 4; ++step)
    put(store, step, {0, 4}, static_cast<float>(step));
  CHECK(at::equal(store.sums(0), at::full({1, 2, 2}, 4 * 2, at::kDouble)));  // of step 3 alone
  store.put(0, 4, {}, at::zeros({0, 1, 2, 1, 2}), true);
  CHECK(at::equal(store.sums(0), expected(0)));  // a rank without rows begins the step, too
}

TEST_CASE("what a patch attends to is the rule's, for any patches, steps and sizes") {
  at::manual_seed(32);
  std::mt19937 random(32);
  int extrapolating = 0, inner_factors = 0;
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const int64_t batch = 1 + random() % 3, tokens = 4 + random() % 40, heads = 1 + random() % 3;
    const int64_t dim = 3 + random() % 18, patches = 1 + random() % 4;
    const auto freshness = round % 2 ? Freshness::newest : Freshness::step_before;
    const bool predicts = round / 2 % 2;
    const int warmup = static_cast<int>(random() % 3), blocks = 2;
    KvStore store({{3, 3 + blocks}, batch, tokens, heads, dim, freshness, predicts}, at::kFloat,
                  at::kCPU);
    std::vector<KvRule> rules(blocks, KvRule(freshness, predicts, tokens));
    std::vector<DriftingTokens> states;
    for (int block = 0; block < blocks; ++block)
      states.emplace_back(batch, tokens, heads, dim);
    for (int step = 0; step < 5; ++step) {
      std::vector<at::Tensor> now;
      for (auto& state : states)
        now.push_back(state.next());
      const int64_t parts = step < warmup ? 1 : patches;
      for (int64_t m = 0; m < parts; ++m) {
        const TokenRun patch{m * tokens / parts, (m + 1) * tokens / parts};
        for (int block = 0; block < blocks; ++block) {
          const at::Tensor qkv = now[block].slice(1, patch.begin, patch.end);
          const at::Tensor kv = qkv.slice(2, 1, 3);
          const auto want = rules[block].see(step, patch, kv);
          store.put(3 + block, step, {patch}, kv.transpose(0, 1), true);
          const auto choices = store.choose(3 + block, step, {patch});
          at::Tensor factors;
          if (KvStore::needs_factors(choices)) {
            factors = kernels::extrapolation_factors(store.sums(3 + block));
            CHECK((factors - want.factors).abs().max().item<double>() < 1e-4);
            ++extrapolating;
            inner_factors += ((want.factors > 0) & (want.factors < 1)).any().item<bool>();
          }
          CHECK(KvStore::needs_factors(choices) == (want.extrapolated > 0));
          auto runs = store.runs(3 + block, choices, factors);
          runs.push_back({kv.select(2, 0), kv.select(2, 1), {}, {}, {}});
          const at::Tensor got = kernels::attention(qkv.select(2, 0), runs, 1 / std::sqrt(dim));
          CHECK(apart(got, plain_attention(qkv.select(2, 0), want.k, want.v)) < 1e-5);
        }
      }
    }
  }
  CHECK(extrapolating > 50);
  CHECK(inner_factors > 30);
}

TEST_CASE("runs of any shape go in together and come out alike") {
  at::manual_seed(33);
  KvStore store({{0, 1}, 2, 9, 2, 4, Freshness::newest, true}, at::kBFloat16, at::kCPU);
  const TokenRuns runs{{6, 9}, {0, 0}, {1, 3}};
  CHECK(count_of(runs) == 5);
  const at::Tensor kv = at::randn({5, 2, 2, 2, 4}).to(at::kBFloat16);
  store.put(0, 0, runs, kv, false);
  CHECK(seen(store, 1, {}) == std::vector<Seen>{{{1, 3}, 0, false}, {{6, 9}, 0, false}});
  const auto kept = store.runs(0, store.choose(0, 1, {}), {});
  CHECK(at::equal(kept[0].k.transpose(0, 1), kv.slice(0, 3, 5).select(2, 0)));
  CHECK(at::equal(kept[1].v.transpose(0, 1), kv.slice(0, 0, 3).select(2, 1)));
}
