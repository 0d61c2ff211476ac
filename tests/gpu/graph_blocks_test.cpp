// A stage's blocks as a job calls them, recorded and replayed, beside the same called plainly.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/parallel/sequence_attention.h"
#include "actors/stage/block_graphs.h"
#include "actors/stage/live_attention.h"
#include "tests/gpu/recording_device.h"
#include "tests/models/family_fixtures.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::actors;
using models::testing::Fixture;
using Freshness = models::KvStore::Freshness;

namespace {

/// Rule by which K,V are kept; with one patch nothing is kept.
struct Way {
  std::string name;
  int patches;
  Freshness freshness = Freshness::newest;
  bool predicts = false;
};

/// A model on the recording device, and its text.
struct LoadedModel {
  explicit LoadedModel(const Fixture& of)
      : fixture(of),
        spec(models::testing::family_of(of.checkpoint)),
        device(*testing::recording_device()) {
    at::set_num_threads(1);  // on a busy machine threads wait for each other
    const models::StagePart all{{0, static_cast<int>(spec.transformer.num_layers)}};
    model = models::load_transformer(spec, all, at::kFloat, device);
    auto text = of.text;
    for (auto& encoder : text) {
      if (encoder.states.defined()) encoder.states = encoder.states.to(device);
      if (encoder.pooled.defined()) encoder.pooled = encoder.pooled.to(device);
    }
    const auto states = model->project_caption(text);
    const auto mask = at::ones(states.states.sizes().slice(0, 2), at::kBool);
    caption = model->cache_caption(states, mask.to(device));
    if (spec.transformer.joint) texts = states.states.size(1);
  }

  Fixture fixture;
  spec::ModelSpec spec;
  at::Device device;
  std::unique_ptr<models::DiffusionTransformer> model;
  std::unique_ptr<models::CaptionCache> caption;
  std::int64_t texts = 0;
};

/// One job's micro-steps.
class Player {
 public:
  Player(const LoadedModel& loaded, const Way& way, bool records)
      : loaded_(loaded), way_(way), attention_(make_attention()) {
    if (records) graphs_ = std::make_unique<BlockGraphs>(attention_.store());
  }

  /// Steps 0 and 5 are of the whole picture, from nothing kept.
  std::vector<at::Tensor> step(int step, const at::Tensor& latents) {
    const bool whole = way_.patches == 1 || step == 0 || step == 5;
    if (step == 5) attention_.forget();
    auto fresh = loaded_.model->condition(
        {900.0 - 70 * step, loaded_.fixture.input.guidance, size()}, *loaded_.caption);
    if (condition_ && graphs_) {
      condition_->take(*fresh);
    } else {
      condition_ = std::move(fresh);
    }
    std::vector<at::Tensor> made;
    for (int patch = whole ? -1 : 0; patch < (whole ? 0 : way_.patches); ++patch)
      made.push_back(micro_step(step, patch, latents));
    return made;
  }
  void meet_nan() { nan_ = true; }
  void meet_wait() { waits_ = true; }
  BlockGraphs& graphs() { return *graphs_; }
  LayerWatch layers;

 private:
  models::PictureSize size() const { return loaded_.fixture.input.size; }

  SequenceAttention make_attention() const {
    std::unique_ptr<models::KvStore> store;
    const auto& of = loaded_.fixture;
    if (way_.patches > 1) {
      store = std::make_unique<models::KvStore>(
          models::KvStore::Shape{loaded_.model->attentions(), of.latents.size(0),
                                 loaded_.texts + of.rows() * of.columns(), loaded_.model->heads(),
                                 loaded_.model->head_dim(), way_.freshness, way_.predicts},
          at::kFloat, loaded_.device);
    }
    return {SequenceAttention::Place{}, std::nullopt, RingAttention(0, std::move(store), {})};
  }

  at::Tensor micro_step(int step, int patch, const at::Tensor& latents) {
    const auto all = loaded_.fixture.rows();
    const models::TokenRows rows{patch < 0 ? 0 : all * patch / way_.patches,
                                 patch < 0 ? all : all * (patch + 1) / way_.patches};
    const auto texts = patch <= 0 ? loaded_.texts : 0, columns = loaded_.fixture.columns();
    models::TokenRuns runs{
        {loaded_.texts + rows.begin * columns, loaded_.texts + rows.end * columns}};
    if (texts > 0) runs.insert(runs.begin(), {0, texts});
    attention_.begin({runs}, step, patch < 0, false, 0, loaded_.texts);
    auto hidden =
        loaded_.model->embed(latents.slice(2, rows.begin * 2, rows.end * 2), size(), rows);
    if (texts > 0)
      hidden = at::cat({loaded_.model->embed_text(*loaded_.caption, 0, texts), hidden}, 1);
    if (std::exchange(nan_, false)) hidden.select(1, 0).fill_(NAN);
    const auto compute = [&](at::Tensor given, LayerWatch& watch) {
      LiveAttention live(attention_, [&](int slot, const at::Tensor& qkv) {
        watch.see("attention " + std::to_string(slot), qkv.select(4, 0));
      });
      models::WholeWeights sums;
      const auto out = loaded_.model->run_blocks(std::move(given), {size(), {rows}, 0, texts},
                                                 *condition_, *loaded_.caption, live, sums);
      return waits_ ? out * out.sum().item<float>() : out;
    };
    layers.begin();
    const auto slots = loaded_.model->attentions();
    hidden = graphs_ ? graphs_->run({std::to_string(patch), step, slots}, hidden, layers, compute)
                     : compute(hidden, layers);
    return loaded_.model->project(hidden.slice(1, texts), *condition_, size(), rows);
  }

  const LoadedModel& loaded_;
  Way way_;
  SequenceAttention attention_;
  std::unique_ptr<models::StepCondition> condition_;
  std::unique_ptr<BlockGraphs> graphs_;
  bool nan_ = false, waits_ = false;
};

constexpr int kSteps = 8;

at::Tensor latents_of(const LoadedModel& loaded, int step) {
  at::manual_seed(step + 1);
  return at::randn(loaded.fixture.latents.sizes()).to(loaded.device);
}

bool same(const at::Tensor& got, const at::Tensor& want) {
  // A GPU's library may take another way to a product while it is recorded.
  return got.is_cpu() ? at::equal(got, want) : at::allclose(got, want, 1e-4, 1e-4);
}

std::vector<Fixture> one_of_each_family() {
  std::vector<Fixture> some;
  for (const auto& of : models::testing::fixtures())
    if (of.name.ends_with("_wide") || of.name == "sd35_large" || of.name == "wan_clip")
      some.push_back(of);
  at::manual_seed(9);
  Fixture pixart{.name = "pixart",
                 .checkpoint = "tiny-pixart",
                 .text = {},
                 .input = {},
                 .latents = at::randn({2, 4, 16, 12}),
                 .output = {}};
  const auto spec = models::testing::family_of(pixart.checkpoint);
  const auto channels = std::get<spec::PixArtSpec>(spec.transformer.family).caption_channels;
  pixart.text = {{.states = at::randn({2, 7, channels}), .lengths = {}, .pooled = {}}};
  pixart.input.size = {16, 12};
  some.push_back(pixart);
  return some;
}

}  // namespace

TEST_CASE(
    "blocks that are replayed give what they give when they are called, in every way of keeping "
    "K,V") {
  TROUPE_NEEDS_RECORDER();
  const c10::InferenceMode inference;
  struct Expected {
    Way way;
    std::uint64_t recorded, replayed;
  };
  // By hand: a call is plain when its history comes for the first time, recorded and replayed the
  // second time. Where K,V versions fill up, the first steps after a whole one have histories of
  // their own.
  const std::vector<Expected> ways{
      {{"exact", 1}, 1, 7},
      {{"pipefusion", 2}, 3, 11},
      {{"pipefusion, predicted", 2, Freshness::newest, true}, 5, 9},
      {{"distrifusion", 2, Freshness::step_before}, 5, 9},
      {{"distrifusion, predicted", 2, Freshness::step_before, true}, 7, 7},
      {{"three patches", 3}, 4, 16},
  };
  for (const auto& fixture : one_of_each_family()) {
    const LoadedModel loaded(fixture);
    for (const auto& [way, recorded, replayed] : ways) {
      CAPTURE(fixture.name);
      CAPTURE(way.name);
      if (fixture.rows() < way.patches) continue;
      Player plain(loaded, way, false), recorder(loaded, way, true);
      for (int step = 0; step < kSteps; ++step) {
        CAPTURE(step);
        const auto latents = latents_of(loaded, step);
        const auto want = plain.step(step, latents), got = recorder.step(step, latents);
        REQUIRE(got.size() == want.size());
        for (std::size_t i = 0; i < got.size(); ++i)
          CHECK(same(got[i], want[i]));
        CHECK(recorder.layers.names() == plain.layers.names());
        CHECK(same(at::stack(recorder.layers.sums()), at::stack(plain.layers.sums())));
      }
      CHECK(recorder.graphs().failure().empty());
      CHECK(recorder.graphs().counts().recorded == recorded);
      CHECK(recorder.graphs().counts().replayed == replayed);
    }
  }
}

TEST_CASE("jobs side by side have recordings of their own, and a new epoch's job begins anew") {
  TROUPE_NEEDS_RECORDER();
  const c10::InferenceMode inference;
  const LoadedModel loaded(one_of_each_family().back());
  const Way way{"pipefusion", 2};
  const auto first = [&](int step) { return latents_of(loaded, step); };
  const auto second = [&](int step) { return latents_of(loaded, 100 + step); };
  Player plain_one(loaded, way, false), plain_other(loaded, way, false), other(loaded, way, true);
  auto one = std::make_unique<Player>(loaded, way, true);
  for (int step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    if (step == 5) one = std::make_unique<Player>(loaded, way, true);
    CHECK(same(one->step(step, first(step)).back(), plain_one.step(step, first(step)).back()));
    CHECK(same(other.step(step, second(step)).back(), plain_other.step(step, second(step)).back()));
  }
  CHECK(one->graphs().counts().recorded == 2);
  CHECK(other.graphs().counts().recorded == 3);
}

TEST_CASE("a call that waits for the device stays plain, and the host counts it once") {
  TROUPE_NEEDS_RECORDER();
  const c10::InferenceMode inference;
  const LoadedModel loaded(one_of_each_family().back());
  const Way way{"pipefusion, predicted", 2, Freshness::newest, true};
  Player plain(loaded, way, false), recorder(loaded, way, true);
  plain.meet_wait();
  recorder.meet_wait();
  for (int step = 0; step < kSteps; ++step) {
    CAPTURE(step);
    CHECK(same(recorder.step(step, latents_of(loaded, step)).back(),
               plain.step(step, latents_of(loaded, step)).back()));
  }
  CHECK(recorder.graphs().counts().recorded == 0);
  CHECK(!recorder.graphs().failure().empty());
}

TEST_CASE("a NaN is named by its layer in a replay, too") {
  TROUPE_NEEDS_RECORDER();
  const c10::InferenceMode inference;
  const LoadedModel loaded(one_of_each_family().back());
  const Way way{"exact", 1};
  Player player(loaded, way, true);
  FiniteCheck check(FiniteCheck::Read::at_once);
  for (int step = 0; step < 4; ++step)
    check.require(player.step(step, latents_of(loaded, step)).back(), "it", "float32",
                  player.layers);
  player.meet_nan();
  const auto made = player.step(4, latents_of(loaded, 4)).back();
  CHECK(player.graphs().counts().replayed == 4);
  CHECK_THROWS_WITH(check.require(made, "it", "float32", player.layers),
                    "[actor] it is not finite before attention 0, in float32");
}
