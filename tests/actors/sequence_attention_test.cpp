#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <random>

#include "tests/actors/mesh_groups.h"
#include "tests/models/kv_rule.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace std::chrono_literals;
using namespace troupe;
using actors::HeadExchange;
using actors::RingAttention;
using actors::SequenceAttention;
using actors::testing::meet;
using actors::testing::MeshGroups;
using actors::testing::wait_long;
using models::KvStore;
using models::TokenRun;
using models::TokenRuns;
using models::testing::apart;
using models::testing::DriftingTokens;
using models::testing::KvRule;
using tensor::testing::Member;
using tensor::testing::on_ranks;
using tensor::testing::require;
using Freshness = KvStore::Freshness;
using mesh::Axis;

namespace {

using Shares = std::vector<TokenRuns>;  // by sequence rank

struct AttentionJob {
  int64_t batch = 1, tokens = 12, heads = 2, dim = 4;
  int blocks = 2, steps = 5, warmup = 1;
  std::vector<TokenRun> patches;
  Freshness freshness = Freshness::newest;
  bool predicts = false;
  bool keeps = true;                   // a store at all
  int64_t parts = 1;                   // of the batch, in synchronous steps
  std::vector<TokenRun> padding = {};  // by batch item; empty: none

  bool synchronous(int step) const { return step < warmup; }
};

/// qkv and what is to come out, by step and block: [B, tokens, ...].
struct Script {
  std::vector<std::vector<at::Tensor>> qkv, out;
};

/// `parts` runs of a run, cut anywhere, some of them empty.
std::vector<TokenRun> cut(TokenRun run, int parts, std::mt19937& random) {
  std::vector<int64_t> cuts{run.begin, run.end};
  for (int i = 1; i < parts; ++i)
    cuts.push_back(run.begin + random() % (run.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<TokenRun> runs;
  for (int i = 0; i < parts; ++i)
    runs.push_back({cuts[i], cuts[i + 1]});
  return runs;
}

/// A patch over all ranks; under distrifusion a patch for each ring rank, over its ulysses ranks.
std::vector<Shares> shares_of(const AttentionJob& job, const mesh::Degrees& degrees,
                              std::mt19937& random) {
  std::vector<Shares> micro_steps;
  const bool waves = job.freshness == Freshness::step_before;
  const size_t side_by_side = waves ? degrees.ring : 1;
  for (size_t first = 0; first < job.patches.size(); first += side_by_side) {
    Shares shares;
    for (size_t m = first; m < first + side_by_side; ++m) {
      const TokenRun patch = m < job.patches.size() ? job.patches[m] : TokenRun{};
      for (const TokenRun& run : cut(patch, degrees.sp() / side_by_side, random))
        shares.push_back({run});
    }
    micro_steps.push_back(std::move(shares));
  }
  return micro_steps;
}

Shares whole_of(const std::vector<Shares>& micro_steps) {
  Shares whole(micro_steps.front().size());
  for (const Shares& shares : micro_steps) {
    for (size_t rank = 0; rank < shares.size(); ++rank)
      whole[rank].insert(whole[rank].end(), shares[rank].begin(), shares[rank].end());
  }
  return whole;
}

at::Tensor rows_at(const at::Tensor& all, const TokenRuns& runs) {
  std::vector<at::Tensor> parts{all.slice(1, 0, 0)};
  for (const TokenRun& run : runs)
    parts.push_back(all.slice(1, run.begin, run.end));
  return at::cat(parts, 1);
}

/// Batch item `item` alone, without its padding.
AttentionJob without_padding(const AttentionJob& job, int64_t item) {
  const TokenRun hole = job.padding[item];
  const auto moved = [&](int64_t token) {
    return token <= hole.begin ? token : token - hole.size();
  };
  AttentionJob own = job;
  own.batch = own.parts = 1;
  own.tokens -= hole.size();
  own.padding = {};
  for (TokenRun& patch : own.patches)
    patch = {moved(patch.begin), moved(patch.end)};
  return own;
}

Script script_of(const AttentionJob& job);

/// Each item's script alone, put together; NaN comes out where there is padding.
Script script_with_padding(const AttentionJob& job) {
  std::vector<Script> own;
  for (int64_t item = 0; item < job.batch; ++item)
    own.push_back(script_of(without_padding(job, item)));
  Script script = own.front();
  const auto join = [&](auto of, double padding, int step, int block) {
    std::vector<at::Tensor> items;
    for (int64_t item = 0; item < job.batch; ++item) {
      const at::Tensor seen = of(own[item])[step][block];
      const TokenRun hole = job.padding[item];
      auto shape = seen.sizes().vec();
      shape[1] = hole.size();
      items.push_back(at::cat({seen.slice(1, 0, hole.begin),
                               at::full(shape, padding, seen.options()), seen.slice(1, hole.begin)},
                              1));
    }
    of(script)[step][block] = at::cat(items);
  };
  for (int step = 0; step < job.steps; ++step) {
    for (int block = 0; block < job.blocks; ++block) {
      join(
          [](Script & of) -> auto& { return of.qkv; }, 1e3, step, block);
      join(
          [](Script & of) -> auto& { return of.out; }, NAN, step, block);
    }
  }
  return script;
}

Script script_of(const AttentionJob& job) {
  if (!job.padding.empty()) return script_with_padding(job);

  Script script;
  std::vector<DriftingTokens> states;
  std::vector<KvRule> rules;
  for (int block = 0; block < job.blocks; ++block) {
    states.emplace_back(job.batch, job.tokens, job.heads, job.dim);
    rules.emplace_back(job.freshness, job.predicts, job.tokens);
  }
  for (int step = 0; step < job.steps; ++step) {
    auto& now = script.qkv.emplace_back();
    auto& out = script.out.emplace_back();
    for (int block = 0; block < job.blocks; ++block) {
      now.push_back(states[block].next());
      std::vector<at::Tensor> parts;
      for (const TokenRun& patch :
           job.synchronous(step) ? std::vector<TokenRun>{{0, job.tokens}} : job.patches) {
        parts.push_back(
            rules[block].attend(step, patch, now.back().slice(1, patch.begin, patch.end)));
      }
      out.push_back(at::cat(parts, 1));
    }
  }
  return script;
}

/// Plays a job at one rank of a mesh; the largest difference from the script.
double play(const AttentionJob& job, const Script& script, const std::vector<Shares>& micro_steps,
            const mesh::Mesh& mesh, Member* member) {
  const auto at = mesh.coordinates(member ? member->rank : 0);
  const auto& degrees = mesh.degrees();
  const models::WeightShard shard{at.tp, degrees.tp};
  const int64_t first_head = shard.begin(job.heads), heads = shard.size(job.heads);
  std::optional<HeadExchange> exchange;
  RingAttention::Links links{nullptr, nullptr, wait_long};
  if (member) {
    MeshGroups groups(*member, mesh);
    if (auto ulysses = groups.get(Axis::ulysses)) exchange.emplace(ulysses, heads, wait_long);
    links.ring = groups.get(Axis::ring);
    const bool own_patch = job.freshness == Freshness::step_before;
    if (job.predicts) links.fresh = groups.get(own_patch ? Axis::heads : Axis::stage);
  }
  std::unique_ptr<KvStore> store;
  if (job.keeps) {
    store = std::make_unique<KvStore>(KvStore::Shape{{0, job.blocks},
                                                     job.batch,
                                                     job.tokens,
                                                     exchange ? exchange->own_heads() : heads,
                                                     job.dim,
                                                     job.freshness,
                                                     job.predicts},
                                      at::kFloat, at::kCPU);
  }
  SequenceAttention attention({at.ring, degrees.ring, at.ulysses, degrees.ulysses},
                              std::move(exchange),
                              RingAttention(at.ring, std::move(store), std::move(links)));
  attention.set_padding(job.padding);
  const int own = at.ring * degrees.ulysses + at.ulysses;
  double worst = 0;
  for (int step = 0; step < job.steps; ++step) {
    const bool whole = job.synchronous(step);
    const int64_t parts = whole ? job.parts : 1;
    for (const Shares& shares : whole ? std::vector<Shares>{whole_of(micro_steps)} : micro_steps) {
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = part * job.batch / parts, end = (part + 1) * job.batch / parts;
        attention.begin(shares, step, whole, step + 1 == job.steps, first);
        for (int block = 0; block < job.blocks; ++block) {
          const auto own_of = [&](const at::Tensor& all, int64_t dimension) {
            return rows_at(
                all.slice(0, first, end).slice(dimension, first_head, first_head + heads),
                shares[own]);
          };
          const at::Tensor got = attention.attend(block, own_of(script.qkv[step][block], 3));
          at::Tensor want = own_of(script.out[step][block], 2);
          require(got.sizes() == want.sizes(), "the output's shape");
          if (want.numel() == 0) continue;
          if (!job.padding.empty()) want = at::where(want.isnan(), got.to(at::kDouble), want);
          const double range = script.out[step][block].abs().nan_to_num(0).max().item<double>();
          const double off = (got.to(at::kDouble) - want).abs().max().item<double>() / range;
          worst = off <= worst ? worst : off;  // NaN counts
        }
      }
    }
  }
  if (member) meet(*member);
  return worst;
}

double play_on_ranks(const AttentionJob& job, const Script& script, const mesh::Degrees& degrees,
                     std::mt19937& random) {
  const auto micro_steps = shares_of(job, degrees, random);
  const mesh::Mesh mesh(degrees);
  std::mutex mutex;
  double worst = 0;
  on_ranks(tensor::Backend::shm, mesh.world(), [&](Member& member) {
    const double off = play(job, script, micro_steps, mesh, &member);
    const std::lock_guard lock(mutex);
    worst = off <= worst ? worst : off;
  });
  return worst;
}

AttentionJob random_job(std::mt19937& random, Freshness freshness, bool predicts) {
  AttentionJob job;
  job.batch = 1 + random() % 3;
  job.parts = 1 + random() % job.batch;
  job.tokens = 4 + random() % 20;
  job.heads = 1 + random() % 4;
  job.dim = 3 + random() % 10;
  job.blocks = 1 + random() % 3;
  job.warmup = random() % 3;
  job.freshness = freshness;
  job.predicts = predicts;
  const int patches = 1 + random() % 5;
  for (int m = 0; m < patches; ++m)
    job.patches.push_back({m * job.tokens / patches, (m + 1) * job.tokens / patches});
  std::erase_if(job.patches, [](const TokenRun& patch) { return patch.size() == 0; });
  return job;
}

}  // namespace

TEST_CASE("any ring × ulysses × tp gives what one rank gives, and one rank the plain rule") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(41);
  for (const auto freshness : {Freshness::newest, Freshness::step_before}) {
    for (const bool predicts : {false, true}) {
      for (int mix = 0; mix < 12; ++mix) {
        mesh::Degrees degrees{.ring = 1 + mix / 3 % 3, .ulysses = 1 + mix % 3};
        if (mix >= 9 || degrees.sp() <= 3) degrees.tp = 1 + random() % 3;
        const AttentionJob job = random_job(random, freshness, predicts);
        CAPTURE(degrees.ring);
        CAPTURE(degrees.ulysses);
        CAPTURE(degrees.tp);
        CAPTURE(job.heads);
        CAPTURE(job.warmup);
        const Script script = script_of(job);
        CHECK(play(job, script, shares_of(job, {}, random), mesh::Mesh({}), nullptr) < 1e-5);
        CHECK(play_on_ranks(job, script, degrees, random) < 1e-5);
      }
    }
  }
}

TEST_CASE("padding is seen by nobody, and each item has its own") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(45);
  for (const auto freshness : {Freshness::newest, Freshness::step_before}) {
    for (const bool predicts : {false, true}) {
      for (const mesh::Degrees degrees : {mesh::Degrees{.ring = 2},
                                          {.ring = 3, .ulysses = 2},
                                          {.ulysses = 3},
                                          {.ring = 2, .ulysses = 2, .tp = 2}}) {
        AttentionJob job = random_job(random, freshness, predicts);
        const int64_t first = job.patches.front().end;
        job.tokens += 4;  // in the first patch
        for (TokenRun& patch : job.patches)
          patch = {patch.begin == 0 ? 0 : patch.begin + 4, patch.end + 4};
        for (int64_t item = 0; item < job.batch; ++item)
          job.padding.push_back({first + static_cast<int64_t>(random() % 5), first + 4});
        CAPTURE(degrees.ring);
        CAPTURE(degrees.ulysses);
        CAPTURE(job.batch);
        const Script script = script_of(job);
        CHECK(play(job, script, shares_of(job, {}, random), mesh::Mesh({}), nullptr) < 1e-5);
        CHECK(play_on_ranks(job, script, degrees, random) < 1e-5);
        AttentionJob whole = job;
        whole.steps = whole.warmup = 2;
        whole.keeps = false;
        CHECK(play_on_ranks(whole, script_of(whole), degrees, random) < 1e-5);
      }
    }
  }
}

TEST_CASE("whole pictures need no store") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(42);
  for (const mesh::Degrees degrees :
       {mesh::Degrees{}, {.ring = 3}, {.ulysses = 3}, {.ring = 2, .ulysses = 2, .tp = 2}}) {
    AttentionJob job = random_job(random, Freshness::newest, false);
    job.steps = job.warmup = 2;
    job.keeps = false;
    CHECK(play_on_ranks(job, script_of(job), degrees, random) < 1e-5);
  }
}

TEST_CASE("ranks without heads or rows keep up with predicted K,V") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(43);
  for (const auto freshness : {Freshness::newest, Freshness::step_before}) {
    for (const mesh::Degrees degrees : {mesh::Degrees{.ring = 2, .ulysses = 2},
                                        {.ring = 3, .ulysses = 2},
                                        {.ring = 2, .ulysses = 2, .tp = 2}}) {
      AttentionJob job;
      job.tokens = 3;
      job.heads = 1;
      job.patches = {{0, 1}, {1, 2}, {2, 3}};
      job.freshness = freshness;
      job.predicts = true;
      CHECK(play_on_ranks(job, script_of(job), degrees, random) < 1e-5);
    }
  }
}

TEST_CASE("under distrifusion nothing goes round the ring that no step will use") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(44);
  AttentionJob job;
  job.tokens = 10;
  job.steps = 4;
  job.patches = {{0, 4}, {4, 10}};
  job.freshness = Freshness::step_before;
  const Script script = script_of(job);
  const mesh::Mesh mesh({.ring = 2});
  const auto micro_steps = shares_of(job, mesh.degrees(), random);
  on_ranks(tensor::Backend::shm, 2, [&](Member& member) {
    std::shared_ptr<tensor::Group> ring =
        member.device.connect("ring", member.rank, member.addresses, tensor::within(60s));
    auto store = std::make_unique<KvStore>(
        KvStore::Shape{{0, 2}, 1, 10, 2, 4, Freshness::step_before, false}, at::kFloat, at::kCPU);
    RingAttention attention(member.rank, std::move(store), {ring, nullptr, wait_long});
    for (int step = 0; step < job.steps; ++step) {
      attention.begin({step, micro_steps[0], step < 1, step + 1 == job.steps});
      for (int block = 0; block < 2; ++block) {
        attention.attend(
            block, rows_at(script.qkv[step][block], micro_steps[0][member.rank]).transpose(0, 1));
      }
    }
    meet(member);
    require(ring->counters().messages_sent == 3 * 2, "three of four steps send, in two blocks");
    require(ring->counters().messages_received == 3 * 2, "and receive");
  });
}
