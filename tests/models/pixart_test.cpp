#include <ATen/ATen.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/attention.h"
#include "models/dit/kv_store.h"
#include "tests/models/pixart_support.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

/// Pipefusion's store as a port of one process.
class KeptRows : public AttentionPort {
 public:
  KeptRows(const DiffusionTransformer& model, int64_t batch, int64_t tokens)
      : store_({model.part().blocks, batch, tokens, model.heads(), model.head_dim(),
                KvStore::Freshness::newest, false},
               at::kFloat, at::kCPU) {}
  void begin(TokenRun run) {
    run_ = run;
    ++step_;  // everything kept is of steps before
  }
  at::Tensor attend(int block, const at::Tensor& qkv, Attend) override {
    const at::Tensor kv = qkv.slice(2, 1, 3);
    store_.put(block, step_, {run_}, kv.transpose(0, 1), false);
    auto runs = store_.runs(block, store_.choose(block, step_, {run_}), {});
    runs.push_back({kv.select(2, 0), kv.select(2, 1), {}, {}, {}});
    return kernels::attention(qkv.select(2, 0), runs,
                              1 / std::sqrt(static_cast<double>(qkv.size(4))));
  }

 private:
  KvStore store_;
  TokenRun run_;
  int step_ = -1;
};

}  // namespace

TEST_CASE("one call equals diffusers within 1e-5 of its range") {
  std::ifstream file(kFixtures / "expected/transformer.json");
  const auto cases = nlohmann::json::parse(file).at("cases");
  REQUIRE(cases.size() >= 9);
  for (const auto& item : cases) {
    const std::string name = item.at("name");
    CAPTURE(name);
    const auto spec = spec_of(item.at("checkpoint"), item.value("transformer_only", false));
    const auto model = load_transformer(spec, whole(spec), at::kFloat, at::kCPU);
    const at::Tensor timesteps = expected().at(name + ".timestep");
    const at::Tensor want = expected().at(name + ".output").slice(1, 0, 4);
    const bool together = at::equal(timesteps, timesteps[0].expand_as(timesteps));
    const int64_t batch = timesteps.size(0), step = together ? batch : 1;
    for (int64_t first = 0; first < batch; first += step) {
      const at::Tensor got = run(*model, call_of(name, first, first + step));
      CHECK(error(got, want.slice(0, first, first + step)) < 1e-5);
    }
  }
}

TEST_CASE("every intermediate state equals diffusers") {
  for (const auto& [name, checkpoint] : {std::pair<std::string, std::string>{"wide", "tiny-pixart"},
                                         {"ms_square", "tiny-pixart-1024"}}) {
    const auto spec = spec_of(checkpoint, false);
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    const auto stages = split(spec, blocks);
    const Call call = call_of(name, 0, expected().at(name + ".hidden").size(0));
    const auto want = [&, n = name](const std::string& what) {
      return expected().at(n + "." + what);
    };
    const Caption text = projected(*stages[0], call);
    CHECK(error(text.states, want("projected_caption")) < 1e-5);
    at::Tensor hidden = stages[0]->embed(call.latents, call.size, call.rows);
    CHECK(error(hidden, want("embedded")) < 1e-6);
    LocalAttention attention;
    WholeWeights sums;
    for (int block = 0; block < blocks; ++block) {
      CAPTURE(block);
      const auto& stage = *stages[static_cast<size_t>(block)];
      const auto caption = stage.cache_caption(text, call.mask);
      const auto step = stage.condition({call.timestep, 1, call.size}, *caption);
      CHECK(caption->bytes() > 0);
      hidden = stage.run_blocks(hidden, tokens_of(call), *step, *caption, attention, sums);
      CHECK(error(hidden, want("block" + std::to_string(block))) < 1e-5);
    }
  }
}

TEST_CASE("any split into stages gives the same bits") {
  const auto spec = spec_of("tiny-pixart", false);
  const Call call = call_of("tall_odd", 1, 2);
  const at::Tensor want = run(*load_transformer(spec, whole(spec), at::kFloat, at::kCPU), call);
  for (int count : {2, 3, 5}) {
    const auto stages = split(spec, count);
    const Caption text = projected(*stages[0], call);
    at::Tensor hidden = stages[0]->embed(call.latents, call.size, call.rows);
    int64_t bytes = 0;
    for (const auto& stage : stages) {
      LocalAttention attention;
      WholeWeights sums;
      const auto caption = stage->cache_caption(text, call.mask);
      const auto step = stage->condition({call.timestep, 1, call.size}, *caption);
      hidden = stage->run_blocks(hidden, tokens_of(call), *step, *caption, attention, sums);
      bytes = std::max(bytes, stage->bytes());
    }
    const auto step = stages.back()->condition({call.timestep, 1, call.size},
                                               *stages.back()->cache_caption(text, call.mask));
    CHECK(at::equal(stages.back()->project(hidden, *step, call.size, call.rows), want));
    CHECK(bytes < load_transformer(spec, whole(spec), at::kFloat, at::kCPU)->bytes());
    CHECK_THROWS_AS(stages[1]->embed(call.latents, call.size, call.rows), std::logic_error);
    CHECK_THROWS_AS(stages[0]->project(hidden, *step, call.size, call.rows), std::logic_error);
  }
}

TEST_CASE("patches after a synchronous step with the same inputs give the whole call") {
  const auto spec = spec_of("tiny-pixart-1024", false);
  const auto model = load_transformer(spec, whole(spec), at::kFloat, at::kCPU);
  const Call call = call_of("ms_tall_odd", 0, 1);
  const at::Tensor want = run(*model, call);
  const int64_t columns = call.size.latent_width / 2, grid = call.size.latent_height / 2;
  const auto caption = model->cache_caption(projected(*model, call), call.mask);
  const auto step = model->condition({call.timestep, 1, call.size}, *caption);
  const auto patch = [&](KeptRows& port, int64_t first, int64_t end) {
    port.begin({first * columns, end * columns});
    WholeWeights sums;
    const TokenRows rows{first, end};
    const at::Tensor latents = call.latents.slice(2, first * 2, end * 2);
    const at::Tensor hidden = model->run_blocks(model->embed(latents, call.size, rows),
                                                {call.size, {rows}}, *step, *caption, port, sums);
    return model->project(hidden, *step, call.size, rows);
  };
  KeptRows port(*model, 1, grid * columns);
  CHECK(error(patch(port, 0, grid), want) < 1e-6);
  for (int64_t patches : {2, 4, 9}) {
    for (int64_t m = 0; m < patches; ++m) {
      const int64_t first = m * grid / patches, end = (m + 1) * grid / patches;
      CHECK(error(patch(port, first, end), want.slice(2, first * 2, end * 2)) < 1e-5);
    }
  }
  KeptRows unused(*model, 1, grid * columns);
  CHECK(error(patch(unused, 0, 3), want.slice(2, 0, 6)) > 1e-4);  // rows never seen are absent
}

TEST_CASE("streamed blocks compute the same bits, from the files and from copies") {
  const auto spec = spec_of("tiny-pixart", false);
  const Call call = call_of("tall_odd", 1, 2);
  for (const auto type : {kernels::WeightType::as_computed, kernels::WeightType::int8}) {
    const auto model = [&](KeepBlocks keep) {
      return load_transformer(spec, whole(spec), at::kFloat, at::kCPU, {}, nullptr, type, keep);
    };
    const auto kept = model(KeepBlocks::all);
    const at::Tensor want = run(*kept, call);
    for (const auto keep : {KeepBlocks::from_files, KeepBlocks::from_host}) {
      const auto streamed = model(keep);
      CHECK(streamed->bytes() < kept->bytes());
      for (int turn = 0; turn < 2; ++turn)
        CHECK(at::equal(run(*streamed, call), want));
    }
  }
}

TEST_CASE("half precision stays near float32") {
  const auto spec = spec_of("tiny-pixart", false);
  const Call call = call_of("square", 0, 1);
  const at::Tensor want = expected().at("square.output").slice(1, 0, 4);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto model = load_transformer(spec, whole(spec), dtype, at::kCPU);
    const at::Tensor got = run(*model, call);
    CHECK((got.scalar_type() == dtype));
    CHECK(error(got, want) < (dtype == at::kHalf ? 1e-2 : 5e-2));
  }
}

TEST_CASE("a caption without any token is attended to as diffusers does") {
  const auto spec = spec_of("tiny-pixart", false);
  const auto model = load_transformer(spec, whole(spec), at::kFloat, at::kCPU);
  Call call = call_of("square", 0, 1);
  call.mask = at::zeros_like(call.mask);
  CHECK(run(*model, call).isfinite().all().item<bool>());
}

TEST_CASE("what does not fit is refused") {
  const auto spec = spec_of("tiny-pixart", false);
  CHECK_THROWS_WITH_AS(load_transformer(spec, {{3, 9}, true, true}, at::kFloat, at::kCPU),
                       doctest::Contains("[pixart] blocks 3 to 9 of 5"), std::invalid_argument);
  auto wrong = spec;
  auto family = std::get<spec::PixArtSpec>(spec.transformer.family);
  family.num_attention_heads = 4;
  wrong.transformer = family;
  CHECK_THROWS_AS(load_transformer(wrong, whole(wrong), at::kFloat, at::kCPU), std::runtime_error);
  const auto model = load_transformer(spec, whole(spec), at::kFloat, at::kCPU);
  const Call call = call_of("square", 0, 1);
  CHECK_THROWS_AS(model->embed(call.latents, {16, 15}, {0, 8}), std::invalid_argument);
  CHECK_THROWS_AS(model->embed(call.latents, call.size, {0, 7}), std::invalid_argument);
  Call narrow = call;
  narrow.caption = at::zeros({1, 3, 5});
  CHECK_THROWS_AS(projected(*model, narrow), std::invalid_argument);
  CHECK_THROWS_AS(model->cache_caption(projected(*model, call), at::ones({1, 3}, at::kBool)),
                  std::invalid_argument);
}
