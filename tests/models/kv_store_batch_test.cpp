#include <ATen/ATen.h>

#include "models/dit/kv_store.h"
#include "tests/models/kv_seen.h"
#include "tests/support/doctest.h"

// Items of a batch in one store, and what fits into none.

using namespace troupe;
using namespace troupe::models;
using models::testing::seen;
using models::testing::Seen;
using Freshness = KvStore::Freshness;

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

TEST_CASE("histories are told relative to a step, and can be taken over") {
  const KvStore::Shape shape{{3, 5}, 2, 6, 2, 4, Freshness::newest, true};
  KvStore early(shape, at::kFloat, at::kCPU), late(shape, at::kFloat, at::kCPU),
      other(shape, at::kFloat, at::kCPU);
  const models::BlockRange blocks{3, 5};
  CHECK(early.history(blocks, 0) == late.history(blocks, 7));
  const auto put = [](KvStore& store, int block, int step, TokenRun run, bool fits) {
    store.put(block, step, {run}, at::randn({run.size(), 2, 2, 2, 4}), fits);
  };
  const auto play = [&](KvStore& store, int first) {
    for (const int block : {3, 4}) {
      put(store, block, first, {0, 6}, false);
      put(store, block, first + 1, {0, 3}, true);
    }
  };
  play(early, 0);
  play(late, 7);
  const auto told = early.history(blocks, 1);
  CHECK(told == late.history(blocks, 8));
  CHECK(told != late.history(blocks, 9));
  // One token, one item's version or the sums alone make another history.
  late.put(4, 8, {{5, 6}}, at::randn({1, 1, 2, 2, 4}), false, 1);
  CHECK(told != late.history(blocks, 8));
  CHECK(told.substr(0, told.size() / 2) == late.history({3, 4}, 8));
  put(late, 3, 8, {0, 0}, true);
  CHECK(told.substr(0, told.size() / 2) == late.history({3, 4}, 8));
  put(late, 3, 9, {0, 0}, true);
  CHECK(told.substr(0, told.size() / 2) != late.history({3, 4}, 8));

  other.set_history(blocks, 21, told);
  CHECK(other.history(blocks, 21) == told);
  for (const TokenRuns& fresh : {TokenRuns{{3, 6}}, TokenRuns{{0, 1}}, TokenRuns{}}) {
    const auto want = early.choose(4, 1, fresh, 1), got = other.choose(4, 21, fresh, 1);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].run == want[i].run);
      CHECK(got[i].version == want[i].version);
      CHECK(got[i].extrapolated == want[i].extrapolated);
    }
  }
  CHECK_THROWS_AS(other.set_history({3, 4}, 21, told), std::invalid_argument);
  CHECK_THROWS_AS(other.set_history(blocks, 21, told.substr(8)), std::invalid_argument);
  KvStore small({{3, 5}, 2, 5, 2, 4, Freshness::newest, true}, at::kFloat, at::kCPU);
  CHECK_THROWS_AS(small.set_history(blocks, 21, told), std::invalid_argument);
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
