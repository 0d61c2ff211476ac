#include "controller/plan/traffic.h"

#include <rapidcheck.h>
#include <numeric>

#include "controller/plan/layout.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::predict_traffic;
using test::sample_model;
using test::square_request;

// The sample model: 8 blocks, width 192, 3 heads of 64. At 256 px: 16 rows of 16 tokens.

namespace {

std::vector<plan::RankTraffic> traffic_of(const wire::ImageRequest& request,
                                          const wire::Parallelism& parallelism) {
  return predict_traffic(test::planned(request, parallelism), sample_model());
}

constexpr std::uint64_t kToken = 192 * 4;  // bytes of a token's hidden state in float32

}  // namespace

TEST_CASE("one actor sends nothing") {
  const auto traffic = traffic_of(square_request(), {});
  REQUIRE(traffic.size() == 1);
  CHECK(traffic[0].sent.empty());
}

TEST_CASE("an all-reduce sends each other rank its run, and the own run to all") {
  CHECK(plan::all_reduce_bytes(8, 4, 4, 0) == (6 + 3 * 2) * 4);
  CHECK(plan::all_reduce_bytes(8, 4, 1, 0) == 0);
  // 7 elements on 3 ranks: runs of 2, 2 and 3.
  CHECK(plan::all_reduce_bytes(7, 8, 3, 0) == (5 + 2 * 2) * 8);
  CHECK(plan::all_reduce_bytes(7, 8, 3, 2) == (4 + 2 * 3) * 8);
  // Together: 2 (N − 1) n.
  for (int size = 1; size < 9; ++size) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < size; ++rank)
      sum += plan::all_reduce_bytes(13, 1, size, rank);
    CHECK(sum == 2u * (size - 1) * 13);
  }
}

TEST_CASE("pp sends hidden states on, latents back, text to all") {
  const auto traffic = traffic_of(square_request(Method::pipefusion, 3, 2), {.pp = 2});
  // 20 steps, each of 256 tokens in whole or in three parts, two branches.
  CHECK(traffic[0].of("edge") == 20 * 2 * 256 * kToken);
  CHECK(traffic[0].of("feedback") == 0);
  CHECK(traffic[1].of("edge") == 0);
  CHECK(traffic[1].of("feedback") == 19 * 4 * 32 * 32 * 4);
  CHECK(traffic[0].of("caption") == 2 * (120 * kToken + 8));
  CHECK(traffic[1].of("caption") == 0);
}

TEST_CASE("cfg exchanges predictions, and halves the batch of everything else") {
  const auto both = traffic_of(square_request(), {.cfg = 2, .pp = 2});
  const auto one = traffic_of(square_request(), {.pp = 2});
  CHECK(both[1].of("cfg") == 20 * 4 * 32 * 32 * 4);
  CHECK(both[3].of("cfg") == both[1].of("cfg"));
  CHECK(both[0].of("cfg") == 0);
  CHECK(2 * both[0].of("edge") == one[0].of("edge"));
  CHECK(both[1].of("feedback") == one[1].of("feedback"));
  auto request = square_request();
  request.guidance_scale = 1;
  CHECK(2 * traffic_of(request, {.pp = 2})[0].of("edge") == one[0].of("edge"));
}

TEST_CASE("ulysses: uneven heads are counted as they are") {
  // 3 heads on 2 ranks: 2 and 1. 8 rows of 16 tokens each.
  const auto traffic = traffic_of(square_request(), {.ulysses = 2});
  const std::uint64_t rows = 8 * 16;
  const std::uint64_t times = 20 * 8 * 2 * 64 * 4;  // steps, blocks, branches, head width, bytes
  CHECK(traffic[0].of("ulysses") == times * (rows * 3 * 1 + rows * 2));
  CHECK(traffic[1].of("ulysses") == times * (rows * 3 * 2 + rows * 1));
}

TEST_CASE("ulysses: uneven rows are counted as they are") {
  auto request = square_request();
  request.height = 240;  // 15 rows: 8 and 7
  request.steps = 1;
  const auto traffic = traffic_of(request, {.ulysses = 2});
  const std::uint64_t times = 8 * 2 * 64 * 4 * 16;
  CHECK(traffic[0].of("ulysses") == times * (8 * 3 * 1 + 7 * 2));
  CHECK(traffic[1].of("ulysses") == times * (7 * 3 * 2 + 8 * 1));
}

TEST_CASE("ulysses over even shares is 4 (N − 1) / N² of p·h a block") {
  for (const int n : {3}) {  // the sample has 3 heads
    auto request = square_request();
    request.height = 384;  // 24 rows
    request.steps = 1;
    request.guidance_scale = 1;
    const auto traffic = traffic_of(request, {.ulysses = n});
    const std::uint64_t hidden = 24 * 16 * kToken;
    for (const auto& rank : traffic)
      CHECK(rank.of("ulysses") == 8 * 4 * hidden * (n - 1) / (n * n));
  }
}

TEST_CASE("ring: the own block's K and V go to every other rank") {
  auto request = square_request();
  request.steps = 1;
  const auto traffic = traffic_of(request, {.ring = 3});  // 16 rows: 6, 5, 5
  CHECK(traffic[0].of("ring") == 8 * 2 * (2 * 6 * 16 * 2 * kToken));
  CHECK(traffic[2].of("ring") == 8 * 2 * (2 * 5 * 16 * 2 * kToken));
}

TEST_CASE("ulysses × ring: a block is all of its ulysses ranks' rows, for the own heads") {
  auto request = square_request();
  request.steps = 1;
  const auto traffic = traffic_of(request, {.ulysses = 2, .ring = 2});
  // Rows 4, 4, 4, 4; blocks of 8 rows; heads 2 and 1.
  CHECK(traffic[0].of("ring") == 8 * (1 * 2 * 8 * 16 * 2 * 64 * 2 * 4));
  CHECK(traffic[1].of("ring") == 8 * (1 * 2 * 8 * 16 * 1 * 64 * 2 * 4));
  CHECK(traffic[0].of("ulysses") == 8 * 2 * 64 * 4 * 16 * (4 * 3 * 1 + 4 * 2));
}

TEST_CASE("tp: three reductions a block, cross-attention's among them") {
  auto request = square_request();
  request.steps = 1;
  const auto traffic = traffic_of(request, {.tp = 3});
  const std::uint64_t elements = 2 * 256 * 192;  // divides by 3
  for (const auto& rank : traffic)
    CHECK(rank.of("tp") == 8 * 3 * (2 * 2 * (elements / 3)) * 4);
}

TEST_CASE("pipefusion × ring moves all K,V of a step, however many patches") {
  auto request = square_request(Method::pipefusion, 4, 0);
  const auto patched = traffic_of(request, {.ring = 2});
  const auto whole = traffic_of(square_request(), {.ring = 2});
  CHECK(patched[0].of("ring") == whole[0].of("ring"));
  CHECK(patched[1].of("ring") == whole[1].of("ring"));
}

TEST_CASE("distrifusion: a wave has a patch for each ring rank, the last one maybe fewer") {
  auto request = square_request(Method::distrifusion, 5, 1);  // rows 4, 3, 3, 3, 3
  request.steps = 3;  // K,V of the last one are of no use to others
  const auto traffic = traffic_of(request, {.ring = 2});  // waves (4, 3), (3, 3), (3, –)
  CHECK(traffic[0].of("ring") == 2 * 8 * (2 * (4 + 3 + 3) * 16 * 2 * kToken));
  CHECK(traffic[1].of("ring") == 2 * 8 * (2 * (3 + 3) * 16 * 2 * kToken));
}

TEST_CASE("predicted K,V cost one small sum a block where rows are not fresh") {
  auto request = square_request(Method::pipefusion, 4, 1);
  request.kv = KvUse::predict;
  const auto traffic = traffic_of(request, {.ring = 2});
  // Rows have the values of two steps from the third of 20 steps on; 3 patches have others behind
  // them; [2, 2, 2] float64 over two ranks.
  CHECK(traffic[0].of("stage") == 18 * 3 * 8 * (8 * 8));
  request.warmup_steps = 0;
  CHECK(traffic_of(request, {.ring = 2})[0].of("stage") == 18 * 3 * 8 * (8 * 8));
  request.warmup_steps = 3;
  CHECK(traffic_of(request, {.ring = 2})[0].of("stage") == 17 * 3 * 8 * (8 * 8));
  request.warmup_steps = 0;
  request.method = Method::distrifusion;
  const auto waves = traffic_of(request, {.ulysses = 2, .ring = 2});
  CHECK(waves[0].of("stage") == 0);
  CHECK(waves[0].of("heads") == 18 * 2 * 8 * (8 * 8));
}

TEST_CASE("half types halve what is sent in the compute type, and not the latents") {
  auto request = square_request(Method::pipefusion, 2, 1);
  const auto full = traffic_of(request, {.cfg = 2, .pp = 2, .tp = 2});
  request.dtype = ComputeType::bfloat16;
  const auto half = traffic_of(request, {.cfg = 2, .pp = 2, .tp = 2});
  CHECK(2 * half[0].of("edge") == full[0].of("edge"));
  CHECK(2 * half[0].of("tp") == full[0].of("tp"));
  CHECK(half[2].of("cfg") == full[2].of("cfg"));
  CHECK(half[2].of("feedback") == full[2].of("feedback"));
}

TEST_CASE("16 ranks, dp 2, cfg 2, pp 2, ulysses 2: every role at its ranks") {
  auto request = square_request(Method::pipefusion, 4, 1);
  request.prompts = {"a", "b"};
  const auto traffic = traffic_of(request, {.dp = 2, .cfg = 2, .pp = 2, .ulysses = 2});
  REQUIRE(traffic.size() == 16);
  for (int rank = 0; rank < 16; ++rank) {
    const bool last = rank / 2 % 2 == 1;
    CHECK((traffic[rank].of("edge") > 0) == !last);
    CHECK((traffic[rank].of("feedback") > 0) == last);
    CHECK((traffic[rank].of("cfg") > 0) == last);
    CHECK((traffic[rank].of("caption") > 0) == (rank % 8 == 0));
    CHECK(traffic[rank].of("ulysses") > 0);
    // Replicas and branches do the same work.
    for (const char* role : {"edge", "feedback", "cfg", "ulysses"})
      CHECK(traffic[rank].of(role) == traffic[rank % 4].of(role));
  }
  CHECK(traffic[0].of("caption") == 7 * 2 * (120 * kToken + 8));
}

TEST_CASE("every row is computed once, in whatever layout") {
  CHECK(rc::check([] {
    const int rows = *rc::gen::inRange(1, 60);
    const int patches = *rc::gen::inRange(1, rows + 1);
    const int ring = *rc::gen::inRange(1, 6);
    const int ulysses = *rc::gen::inRange(1, 6);
    const auto method = *rc::gen::element<Method>(Method::pipefusion, Method::distrifusion);
    const auto layout = plan::layout_of(method, plan::split_rows(rows, patches), ring, ulysses);
    std::vector<int> seen(rows, 0);
    std::vector<int> whole(ring * ulysses, 0);
    for (const auto& micro : layout.shares) {
      RC_ASSERT(static_cast<int>(micro.size()) == ring * ulysses);
      for (std::size_t rank = 0; rank < micro.size(); ++rank) {
        for (int row = micro[rank].begin; row < micro[rank].end; ++row)
          ++seen[row], ++whole[rank];
      }
    }
    RC_ASSERT(seen == std::vector<int>(rows, 1));
    RC_ASSERT(whole == layout.whole);
    const auto lead = plan::lead_rows(method, plan::split_rows(rows, patches), ring, ulysses);
    RC_ASSERT(static_cast<int>(lead.size()) == layout.micro_steps());
    for (int micro = 0; micro < layout.micro_steps(); ++micro) {
      int block = 0, all = 0;
      for (int rank = 0; rank < ring * ulysses; ++rank) {
        all += layout.rows(micro, rank);
        if (rank < ulysses) block += layout.rows(micro, rank);
      }
      RC_ASSERT(lead[micro].own == layout.rows(micro, 0));
      RC_ASSERT(lead[micro].block == block);
      RC_ASSERT(lead[micro].all == all);
    }
  }));
}

TEST_CASE("the papers' orders of one step") {
  const auto orders = plan::paper_orders(4096, 1152, 28, 8, 2);
  const double hidden = 4096.0 * 1152 * 2;
  REQUIRE(orders.size() == 5);
  CHECK(orders[0].bytes == 4 * hidden * 28);
  CHECK(orders[3].bytes == 4 * hidden * 28 / 8);
  CHECK(orders[4].bytes == 2 * hidden);
}
