#include <ATen/ATen.h>

#include <cmath>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/attention.h"
#include "models/dit/kv_store.h"
#include "models/dit/local_attention.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "tests/models/board_sum.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

const std::string kFolder = TROUPE_SOURCE_DIR "/tests/fixtures/";

spec::ModelSpec family_of(const std::string& checkpoint) {
  const std::string folder = kFolder + checkpoint + "/transformer";
  spec::ModelSpec spec;
  spec.vae.block_out_channels = {1, 1, 1, 1};
  spec.transformer =
      spec::read_transformer_spec(spec::ConfigReader::read(folder + "/config.json"), "");
  constexpr std::string_view kStem = "diffusion_pytorch_model";
  spec.transformer_weights = spec::WeightIndex::read_folder(folder, {&kStem, 1});
  return spec;
}

/// One call of a fixture: what the text encoders gave, latents, and what is expected.
struct Fixture {
  std::string name, checkpoint;
  std::vector<EncoderOutput> text;
  StepInput input;
  at::Tensor latents, output;

  int64_t rows() const { return input.size.latent_height / 2; }
  int64_t columns() const { return input.size.latent_width / 2; }
};

void add_fixtures(const std::string& name, std::vector<Fixture>& all) {
  const auto tensors = load_safetensors(kFolder + "expected/" + name + ".safetensors");
  const auto book = nlohmann::json::parse(std::ifstream(kFolder + "expected/" + name + ".json"));
  for (const auto& item : book.at("cases")) {
    Fixture one;
    one.name = item.at("name");
    one.checkpoint = item.at("checkpoint");
    const auto get = [&](const std::string& key) {
      const auto found = tensors.find(one.name + "." + key);
      return found == tensors.end() ? at::Tensor() : found->second;
    };
    one.latents = get("hidden");
    one.output = get("output");
    one.input = {item.at("timestep"),
                 item.at("guidance"),
                 {one.latents.size(2), one.latents.size(3), item.value("frames", 1)}};
    for (int i = 0; i < 3; ++i) {
      const auto number = std::to_string(i);
      EncoderOutput out{get("states" + number), get("lengths" + number), get("pooled" + number)};
      if (out.states.defined() || out.pooled.defined()) one.text.push_back(out);
    }
    all.push_back(one);
  }
}

const std::vector<Fixture>& fixtures() {
  static const auto all = [] {
    std::vector<Fixture> made;
    for (const char* name : {"families_transformer", "wan_transformer"})
      add_fixtures(name, made);
    return made;
  }();
  return all;
}

/// A model's stages after what they were given of the text.
struct Cast {
  std::vector<std::unique_ptr<DiffusionTransformer>> stages;
  std::vector<std::unique_ptr<CaptionCache>> captions;
  std::vector<std::unique_ptr<StepCondition>> steps;
  int64_t text = 0;  // tokens of the sequence

  Cast(const spec::ModelSpec& spec, const Fixture& of, int count, WeightShard shard = {},
       at::ScalarType dtype = at::kFloat) {
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    Caption caption;
    for (int i = 0; i < count; ++i) {
      const StagePart part{
          {i * blocks / count, (i + 1) * blocks / count}, i == 0, i + 1 == count, shard};
      stages.push_back(load_transformer(spec, part, dtype, at::kCPU));
      if (i == 0) caption = stages[0]->project_caption(of.text);
      const auto mask = at::ones(caption.states.sizes().slice(0, 2), at::kBool);
      captions.push_back(stages[i]->cache_caption(caption, mask));
      steps.push_back(stages[i]->condition(of.input, *captions[i]));
    }
    if (spec.transformer.joint) text = caption.states.size(1);
  }

  /// The prediction for token rows, with the text's tokens or without.
  at::Tensor run(const Fixture& of, TokenRows rows, bool with_text, AttentionPort& attention,
                 TensorParallelPort& sums) const {
    const CallTokens tokens{of.input.size, {rows}, 0, with_text ? text : 0};
    const at::Tensor latents = of.latents.slice(2, rows.begin * 2, rows.end * 2);
    at::Tensor hidden = stages[0]->embed(latents, of.input.size, rows);
    if (tokens.text() > 0)
      hidden = at::cat({stages[0]->embed_text(*captions[0], 0, text), hidden}, 1);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      CHECK(hidden.size(2) == stages[i]->input_width());
      hidden = stages[i]->run_blocks(hidden, tokens, *steps[i], *captions[i], attention, sums);
      CHECK(hidden.size(2) == stages[i]->output_width());
    }
    return stages.back()->project(hidden.slice(1, tokens.text()), *steps.back(), of.input.size,
                                  rows);
  }

  at::Tensor run(const Fixture& of, TensorParallelPort& sums) const {
    LocalAttention attention;
    return run(of, {0, of.rows()}, true, attention, sums);
  }
  at::Tensor run(const Fixture& of) const {
    WholeWeights sums;
    return run(of, sums);
  }
};

double error_of(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor reference = want.to(at::kDouble);
  return ((got.to(at::kDouble) - reference).abs().max() / (reference.max() - reference.min()))
      .item<double>();
}

/// Pipefusion's store as a port of one process, text before the picture.
class KeptTokens final : public AttentionPort {
 public:
  KeptTokens(const Cast& cast, const Fixture& of, int64_t text)
      : text_(text),
        store_({cast.stages[0]->attentions(), of.latents.size(0), text + of.rows() * of.columns(),
                cast.stages[0]->heads(), cast.stages[0]->head_dim(), KvStore::Freshness::newest,
                false},
               at::kFloat, at::kCPU) {}
  void begin(TokenRun picture, bool with_text) {
    picture_ = {{text_ + picture.begin, text_ + picture.end}};
    all_ = picture_;
    if (with_text && text_ > 0) all_.insert(all_.begin(), {0, text_});
    ++step_;  // everything kept is of steps before
  }
  at::Tensor attend(int slot, const at::Tensor& qkv, Attend to) override {
    const auto& fresh = to == Attend::everything ? all_ : picture_;
    const at::Tensor kv = qkv.slice(2, 1, 3);
    store_.put(slot, step_, fresh, kv.transpose(0, 1), false);
    auto runs = store_.runs(slot, store_.choose(slot, step_, fresh), {});
    runs.push_back({kv.select(2, 0), kv.select(2, 1), {}, {}, {}});
    return kernels::attention(qkv.select(2, 0), runs,
                              1 / std::sqrt(static_cast<double>(qkv.size(4))));
  }

 private:
  int64_t text_;
  KvStore store_;
  TokenRuns picture_, all_;
  int step_ = -1;
};

}  // namespace

TEST_CASE("one call of every family equals diffusers within 1e-5 of its range") {
  double worst = 0;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const double error = error_of(Cast(family_of(of.checkpoint), of, 1).run(of), of.output);
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
  }
  MESSAGE("within " << worst << " of range");
}

TEST_CASE("any split of any family into stages gives the same bits") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const at::Tensor want = Cast(spec, of, 1).run(of);
    for (int count = 2; count <= spec.transformer.num_layers; ++count) {
      CAPTURE(count);
      CHECK(at::equal(Cast(spec, of, count).run(of), want));
    }
  }
}

TEST_CASE("shards of any family's weights give together what the whole gives") {
  const OneThread one_thread;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const at::Tensor want = Cast(spec, of, 1).run(of);
    for (const int degree : {2, 3, 5}) {  // of 3 heads
      CAPTURE(degree);
      Board board(degree);
      std::vector<at::Tensor> results(degree);
      std::vector<std::exception_ptr> failures(degree);
      std::vector<std::thread> threads;
      std::atomic<int> reductions{0};
      for (int rank = 0; rank < degree; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            BoardSum sums(board, rank, reductions);
            results[rank] = Cast(spec, of, 1, {rank, degree}).run(of, sums);
          } catch (...) {
            failures[rank] = std::current_exception();
            board.give_up();
          }
        });
      }
      for (auto& thread : threads)
        thread.join();
      for (const auto& failure : failures)
        if (failure) std::rethrow_exception(failure);
      CHECK(error_of(results[0], want) < 2e-6);
      int sums_a_rank = 0;
      for (const auto& block : spec.transformer.blocks)
        sums_a_rank += block.picture_sums + block.text_sums + block.all_sums +
                       (block.norms_across_heads ? 2 : 0);
      CHECK(reductions == degree * sums_a_rank);
    }
  }
}

TEST_CASE("patches of any family, text with the first one, give the whole after a whole step") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const Cast cast(family_of(of.checkpoint), of, 1);
    const at::Tensor want = cast.run(of);
    WholeWeights sums;
    KeptTokens port(cast, of, cast.text);
    const auto patch = [&](int64_t first, int64_t end, bool with_text) {
      port.begin({first * of.columns(), end * of.columns()}, with_text);
      return cast.run(of, {first, end}, with_text, port, sums);
    };
    CHECK(error_of(patch(0, of.rows(), true), want) < 2e-6);
    for (const int64_t patches : {2, 3}) {
      for (int64_t m = 0; m < patches; ++m) {
        const int64_t first = m * of.rows() / patches, end = (m + 1) * of.rows() / patches;
        const at::Tensor expected = want.slice(2, first * 2, end * 2);
        CHECK((patch(first, end, m == 0) - expected).abs().max().item<double>() < 2e-5);
      }
    }
  }
}

TEST_CASE("plans know the weights of any family's parts to the byte") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    for (const int degree : {1, 2, 4}) {
      for (int rank = 0; rank < degree; ++rank) {
        for (const auto& [begin, end] : {std::pair{0, blocks}, {0, 1}, {1, blocks}, {2, 3}}) {
          const StagePart part{{begin, end}, begin == 0, end == blocks, {rank, degree}};
          const auto model = load_transformer(spec, part, at::kBFloat16, at::kCPU);
          CHECK(static_cast<std::uint64_t>(model->bytes()) ==
                2 * spec::kept_elements(spec.transformer,
                                        {begin, end, part.embeds, part.projects, rank, degree}));
        }
      }
    }
  }
}

TEST_CASE("half precision of every family stays near float32") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor got = Cast(family_of(of.checkpoint), of, 1, {}, dtype).run(of);
      CHECK((got.scalar_type() == dtype));
      CHECK(error_of(got, of.output) < (dtype == at::kHalf ? 1e-2 : 8e-2));
    }
  }
}

TEST_CASE("any family's blocks may be called some at a time") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const Cast cast(spec, of, 1);
    const auto& model = *cast.stages[0];
    WholeWeights sums;
    LocalAttention attention;
    CallTokens tokens{of.input.size, {{0, of.rows()}}, 0, cast.text};
    at::Tensor start = model.embed(of.latents, of.input.size, {0, of.rows()});
    if (cast.text > 0)
      start = at::cat({model.embed_text(*cast.captions[0], 0, cast.text), start}, 1);
    const auto signal = model.step_signal(start, tokens, *cast.steps[0]);
    CHECK(signal.size(0) == start.size(0));
    if (signal.dim() == 3) {
      CHECK(signal.size(1) == start.size(1) - cast.text);
      CHECK(signal.size(2) == model.hidden_width());
    }
    const auto run = [&](at::Tensor hidden, std::optional<BlockRange> blocks) {
      tokens.blocks = blocks;
      return model.run_blocks(std::move(hidden), tokens, *cast.steps[0], *cast.captions[0],
                              attention, sums);
    };
    const auto whole = run(start.clone(), {});
    const int last = static_cast<int>(spec.transformer.num_layers);
    for (int cut = 0; cut <= last; ++cut) {
      CAPTURE(cut);
      const auto first = run(start.clone(), BlockRange{0, cut});
      CHECK(first.size(2) == spec.transformer.edge_width(cut));
      CHECK(at::equal(run(first, BlockRange{cut, last}), whole));
    }
    CHECK_THROWS_AS(run(start.clone(), BlockRange{0, last + 1}), std::invalid_argument);
    CHECK_THROWS_AS(run(start.clone(), BlockRange{2, 1}), std::invalid_argument);
  }
}
