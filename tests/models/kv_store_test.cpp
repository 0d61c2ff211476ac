#include "models/dit/kv_store.h"

#include <ATen/ATen.h>

#include <ostream>
#include <random>

#include "kernels/kv_history.h"
#include "models/dit/local_attention.h"
#include "tests/models/kv_rule.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using models::testing::apart;
using models::testing::DriftingTokens;
using models::testing::KvRule;
using models::testing::plain_attention;
using Freshness = KvStore::Freshness;

namespace {

KvStore store_of(Freshness freshness, bool predicts, int64_t tokens = 8) {
  return KvStore({{0, 1}, 1, tokens, 1, 2, freshness, predicts}, at::kFloat, at::kCPU);
}

/// Keys and values of a run whose every element is `value`.
void put(KvStore& store, int step, TokenRun run, float value, bool fits = true) {
  store.put(0, step, {run}, at::full({run.size(), 1, 2, 1, 2}, value), fits);
}

struct Seen {
  TokenRun run;
  int version;
  bool extrapolated;
  bool operator==(const Seen&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << seen.run.begin << "-" << seen.run.end << " version " << seen.version
             << (seen.extrapolated ? " extrapolated" : "");
}

std::vector<Seen> seen(const KvStore& store, int step, const TokenRuns& fresh) {
  std::vector<Seen> all;
  for (const auto& choice : store.choose(0, step, fresh))
    all.push_back({choice.run, choice.version, choice.extrapolated});
  return all;
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

TEST_CASE("items of a batch may come one after another") {
  at::manual_seed(34);
  const KvStore::Shape shape{{0, 1}, 3, 5, 2, 4, Freshness::newest, true};
  KvStore together(shape, at::kFloat, at::kCPU), apart_(shape, at::kFloat, at::kCPU);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor kv = at::randn({5, 3, 2, 2, 4});
    together.put(0, step, {{0, 5}}, kv, false);
    apart_.put(0, step, {{0, 5}}, kv.slice(1, 0, 1), false, 0);
    apart_.put(0, step, {{0, 5}}, kv.slice(1, 1, 3), false, 1);
  }
  const at::Tensor kv = at::randn({2, 3, 2, 2, 4}), factors = at::rand({3, 2});
  for (KvStore* store : {&together, &apart_})
    store->put(0, 3, {{0, 2}}, kv, true);
  CHECK(at::equal(together.sums(0), apart_.sums(0)));
  CHECK(seen(apart_, 3, {{0, 2}}) == std::vector<Seen>{{{2, 5}, 0, true}});
  const auto one = together.runs(0, together.choose(0, 3, {{0, 2}}), factors);
  const auto other = apart_.runs(0, apart_.choose(0, 3, {{0, 2}}), factors);
  CHECK(at::equal(one[0].k, other[0].k));
  CHECK(at::equal(one[0].older_v, other[0].older_v));
  CHECK_THROWS_AS(apart_.put(0, 4, {{0, 2}}, kv.slice(1, 0, 2), false, 2), std::invalid_argument);
}

TEST_CASE("items of a batch may have histories of their own") {
  at::manual_seed(35);
  const KvStore::Shape one{{0, 1}, 1, 6, 2, 4, Freshness::newest, true};
  KvStore::Shape both = one;
  both.batch = 2;
  KvStore together(both, at::kFloat, at::kCPU);
  KvStore apart_[] = {KvStore(one, at::kFloat, at::kCPU), KvStore(one, at::kFloat, at::kCPU)};
  const auto put = [&](int item, int step, TokenRun run, bool fits) {
    const at::Tensor kv = at::randn({run.size(), 1, 2, 2, 4});
    together.put(0, step, {run}, kv, fits, item);
    apart_[item].put(0, step, {run}, kv, fits);
  };
  for (const int item : {0, 1})
    put(item, 0, {0, 6}, false);
  // Item 1 leaves out a patch of step 1, and item 0 one of step 2.
  put(0, 1, {0, 3}, true);
  put(0, 1, {3, 6}, true);
  put(1, 1, {3, 6}, true);
  put(1, 2, {0, 3}, true);
  put(0, 2, {3, 6}, true);
  put(1, 2, {3, 6}, true);
  for (const int item : {0, 1}) {
    CAPTURE(item);
    CHECK(at::equal(together.sums(0)[item], apart_[item].sums(0)[0]));
    const TokenRuns fresh{{3, 6}};
    const auto choices = together.choose(0, 2, fresh, item);
    const auto alone = apart_[item].choose(0, 2, fresh);
    REQUIRE(choices.size() == 1);
    REQUIRE(alone.size() == 1);
    CHECK(choices[0].run == alone[0].run);
    CHECK(choices[0].version == alone[0].version);
    CHECK(choices[0].extrapolated == alone[0].extrapolated);
    CHECK(choices[0].extrapolated == (item == 0));
    const auto factors = at::rand({1, 2});
    const auto kept = together.runs(0, choices, factors, KvStore::Items{item, item + 1});
    const auto own = apart_[item].runs(0, alone, factors);
    CHECK(at::equal(kept[0].k, own[0].k));
    CHECK(at::equal(kept[0].v, own[0].v));
  }
}

TEST_CASE("a rank without heads keeps no bytes but knows which rows there are") {
  KvStore store({{0, 2}, 1, 6, 0, 4, Freshness::newest, true}, at::kFloat, at::kCPU);
  CHECK(store.bytes() == 0);
  for (int step = 0; step < 3; ++step)
    store.put(1, step, {{0, 6}}, at::zeros({6, 1, 2, 0, 4}), true);
  store.put(1, 3, {{0, 2}}, at::zeros({2, 1, 2, 0, 4}), true);
  const auto choices = store.choose(1, 3, {{0, 2}});
  REQUIRE(choices.size() == 1);
  CHECK(choices[0].run == TokenRun{2, 6});
  CHECK(choices[0].extrapolated);
  CHECK(at::equal(store.sums(1), at::zeros({1, 2, 2}, at::kDouble)));
}

TEST_CASE("foreign blocks, wrong shapes and impossible sizes are refused") {
  KvStore store({{1, 3}, 1, 10, 2, 4, Freshness::newest, false}, at::kFloat, at::kCPU);
  const at::Tensor kv = at::zeros({4, 1, 2, 2, 4});
  CHECK_THROWS_WITH_AS(store.put(0, 0, {{0, 4}}, kv, false),
                       "[kv_store] block 0 is not one of 1 to 3", std::invalid_argument);
  CHECK_THROWS_AS(store.put(3, 0, {{0, 4}}, kv, false), std::invalid_argument);
  CHECK_THROWS_AS(store.choose(3, 0, {}), std::invalid_argument);
  CHECK_THROWS_WITH_AS(store.put(1, 0, {{0, 5}}, kv, false), doctest::Contains("for 5 tokens"),
                       std::invalid_argument);
  CHECK_THROWS_AS(store.put(1, 0, {{0, 4}}, kv.select(1, 0), false), std::invalid_argument);
  CHECK_THROWS_AS(store.put(1, 0, {{0, 4}}, at::zeros({4, 2, 2, 2, 4}), false),
                  std::invalid_argument);
  CHECK_THROWS_WITH_AS(store.put(1, 0, {{8, 12}}, kv, false), "[kv_store] tokens 8 to 12 of 10",
                       std::invalid_argument);
  CHECK_THROWS_AS(store.put(1, 0, {{-2, 2}}, kv, false), std::invalid_argument);
  CHECK(store.choose(1, 1, {}).empty());  // nothing of all that was kept
  for (const KvStore::Shape& bad : std::vector<KvStore::Shape>{{{0, 1}, 0, 10, 2, 4},
                                                               {{0, 1}, 1, 0, 2, 4},
                                                               {{0, 1}, 1, 10, -1, 4},
                                                               {{0, 1}, 1, 10, 2, 0},
                                                               {{2, 1}, 1, 10, 2, 4}}) {
    CHECK_THROWS_WITH_AS(KvStore(bad, at::kFloat, at::kCPU), doctest::Contains("impossible sizes"),
                         std::invalid_argument);
  }
}
