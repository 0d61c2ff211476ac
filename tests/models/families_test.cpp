#include <ATen/ATen.h>

#include <cmath>
#include <exception>
#include <thread>

#include "kernels/attention.h"
#include "models/dit/kv_store.h"
#include "models/dit/ports.h"
#include "models/spec/model_spec.h"
#include "tests/models/board_sum.h"
#include "tests/models/family_fixtures.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

/// Pipefusion's store as a port of one process, text before the picture.
class KeptTokens final : public AttentionPort {
 public:
  KeptTokens(const SplitModel& split, const Fixture& of, int64_t text)
      : text_(text),
        seen_(split.seen.defined() ? split.seen.sum(1)
                                   : at::full({of.latents.size(0)}, text, at::kLong)),
        store_({split.stages[0]->attentions(), of.latents.size(0), text + of.rows() * of.columns(),
                split.stages[0]->heads(), split.stages[0]->head_dim(), KvStore::Freshness::newest,
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
    const double scale = 1 / std::sqrt(static_cast<double>(qkv.size(4)));
    std::vector<at::Tensor> outputs;
    for (int64_t item = 0; item < qkv.size(0); ++item) {
      const at::Tensor own = qkv.slice(0, item, item + 1);
      const TokenRun padding{seen_[item].item<int64_t>(), text_};
      store_.put(slot, step_, fresh, own.slice(2, 1, 3).transpose(0, 1), false, item, padding);
      const auto runs = store_.runs(slot, store_.choose(slot, step_, {}, item), {},
                                    KvStore::Items{item, item + 1});
      outputs.push_back(kernels::attention(own.select(2, 0), runs, scale));
    }
    return at::cat(outputs);
  }

 private:
  int64_t text_;
  at::Tensor seen_;  // text tokens of each item that are no padding
  KvStore store_;
  TokenRuns picture_, all_;
  int step_ = -1;
};

}  // namespace

TEST_CASE("one call of every family equals diffusers within 1e-5 of its range") {
  double worst = 0;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const double error = error_of(SplitModel(family_of(of.checkpoint), of, 1).run(of), of.output);
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
  }
  MESSAGE("within " << worst << " of range");
}

TEST_CASE("any split of any family into stages gives the same bits") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const at::Tensor want = SplitModel(spec, of, 1).run(of);
    for (int count = 2; count <= spec.transformer.num_layers; ++count) {
      CAPTURE(count);
      CHECK(at::equal(SplitModel(spec, of, count).run(of), want));
    }
  }
}

TEST_CASE("shards of any family's weights give together what the whole gives") {
  const OneThread one_thread;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const at::Tensor want = SplitModel(spec, of, 1).run(of);
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
            results[rank] = SplitModel(spec, of, 1, {rank, degree}).run(of, sums);
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
    const SplitModel split(family_of(of.checkpoint), of, 1);
    const at::Tensor want = split.run(of);
    WholeWeights sums;
    KeptTokens port(split, of, split.text);
    const auto patch = [&](int64_t first, int64_t end, bool with_text) {
      port.begin({first * of.columns(), end * of.columns()}, with_text);
      return split.run(of, {first, end}, with_text, port, sums);
    };
    CHECK(error_of(patch(0, of.rows(), true), want) < 2e-6);
    for (const int64_t patches : {2, 3}) {
      for (int64_t m = 0; m < patches; ++m) {
        const int64_t first = m * of.rows() / patches, end = (m + 1) * of.rows() / patches;
        const at::Tensor expected = want.slice(2, first * of.patch, end * of.patch);
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

TEST_CASE("streamed blocks of any family compute the same bits, and plans know what is in memory") {
  const OneThread one_thread;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const auto type : {kernels::WeightType::as_computed, kernels::WeightType::int8}) {
        for (const int count : {1, 2}) {
          CAPTURE(count);
          const SplitModel kept(spec, of, count, {}, dtype, KeepBlocks::all, type);
          const SplitModel streamed(spec, of, count, {}, dtype, KeepBlocks::from_files, type);
          const SplitModel copied(spec, of, count, {}, dtype, KeepBlocks::from_host, type);
          const at::Tensor want = kept.run(of);
          for (int turn = 0; turn < 3; ++turn) {
            CHECK(at::equal(streamed.run(of), want));
            CHECK(at::equal(copied.run(of), want));
          }
          for (int i = 0; dtype == at::kBFloat16 && i < count; ++i) {
            const auto& part = streamed.stages[i]->part();
            CHECK(static_cast<std::uint64_t>(streamed.stages[i]->bytes()) ==
                  spec::streamed_bytes(
                      spec.transformer,
                      {part.blocks.begin, part.blocks.end, part.embeds, part.projects}, 2,
                      type == kernels::WeightType::int8 ? spec::KeptAs::quantized
                                                        : spec::KeptAs::computed));
            if (part.blocks.end - part.blocks.begin > 2)
              CHECK(streamed.stages[i]->bytes() < kept.stages[i]->bytes());
          }
        }
      }
    }
    const StagePart shard{{0, blocks}, true, true, {1, 2}};
    const auto model = load_transformer(spec, shard, at::kBFloat16, at::kCPU, {}, nullptr, {},
                                        KeepBlocks::from_files);
    CHECK(static_cast<std::uint64_t>(model->bytes()) ==
          spec::streamed_bytes(spec.transformer, {0, blocks, true, true, 1, 2}, 2,
                               spec::KeptAs::computed));
  }
}

TEST_CASE("weights that a file keeps in 8-bit floats stay so, compute the same, and are planned") {
  const OneThread one_thread;
  const troupe::testing::Scratch scratch;
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const WeightStore weights(spec.transformer_weights);
    std::map<std::string, at::Tensor> small, values;
    for (const auto& entry : spec.transformer_weights.tensors()) {
      const at::Tensor stored = weights.get(entry.name);
      const bool matrix = stored.dim() == 2;
      small[entry.name] = matrix ? stored.to(at::kFloat8_e4m3fn) : stored;
      values[entry.name] = matrix ? small[entry.name].to(at::kFloat) : stored;
    }
    save_safetensors(scratch.path / "small.safetensors", small);
    save_safetensors(scratch.path / "values.safetensors", values);
    const auto packed = with_weights(spec, scratch.path / "small.safetensors");
    const auto plain = with_weights(spec, scratch.path / "values.safetensors");
    for (const auto keep : {KeepBlocks::all, KeepBlocks::from_files, KeepBlocks::from_host})
      CHECK(at::equal(SplitModel(packed, of, 2, {}, at::kFloat, keep).run(of),
                      SplitModel(plain, of, 2, {}, at::kFloat).run(of)));
    const int blocks = static_cast<int>(spec.transformer.num_layers);
    for (const auto& [rank, degree] : {std::pair{0, 1}, {0, 3}, {2, 3}}) {
      const StagePart part{{0, blocks}, true, true, {rank, degree}};
      const auto bytes = [&, rank = rank, degree = degree](const spec::ModelSpec& model,
                                                           spec::KeptAs as) {
        return spec::kept_bytes(model.transformer, {0, blocks, true, true, rank, degree}, 2, as);
      };
      const auto kept = load_transformer(packed, part, at::kBFloat16, at::kCPU);
      CHECK(static_cast<std::uint64_t>(kept->bytes()) == bytes(packed, spec::KeptAs::stored));
      CHECK(kept->bytes() < 0.8 * static_cast<double>(bytes(packed, spec::KeptAs::computed)));
      CHECK(bytes(plain, spec::KeptAs::stored) == bytes(plain, spec::KeptAs::computed));
    }
  }
}

TEST_CASE("half precision of every family stays near float32") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor got = SplitModel(family_of(of.checkpoint), of, 1, {}, dtype).run(of);
      CHECK((got.scalar_type() == dtype));
      CHECK(error_of(got, of.output) < (dtype == at::kHalf ? 1e-2 : 8e-2));
    }
  }
}

TEST_CASE("any family's blocks may be called some at a time") {
  for (const auto& of : fixtures()) {
    CAPTURE(of.name);
    const auto spec = family_of(of.checkpoint);
    const SplitModel split(spec, of, 1);
    const auto& model = *split.stages[0];
    WholeWeights sums;
    LocalAttention attention;
    CallTokens tokens{of.input.size, {{0, of.rows()}}, 0, split.text};
    at::Tensor start = model.embed(of.latents, of.input.size, {0, of.rows()});
    if (split.text > 0)
      start = at::cat({model.embed_text(*split.captions[0], 0, split.text), start}, 1);
    const auto signal = model.step_signal(start, tokens, *split.steps[0]);
    CHECK(signal.size(0) == start.size(0));
    if (signal.dim() == 3) {
      CHECK(signal.size(1) == start.size(1) - split.text);
      CHECK(signal.size(2) == model.hidden_width());
    }
    const auto run = [&](at::Tensor hidden, std::optional<BlockRange> blocks) {
      tokens.blocks = blocks;
      return model.run_blocks(std::move(hidden), tokens, *split.steps[0], *split.captions[0],
                              attention, sums);
    };
    const auto whole = run(start.clone(), {});
    const int last = static_cast<int>(spec.transformer.num_layers);
    for (int cut = 0; cut <= last; ++cut) {
      CAPTURE(cut);
      const auto first = run(start.clone(), BlockRange{0, cut});
      CHECK(first.size(2) == spec.transformer.edge_width(0, last, cut));
      CHECK(at::equal(run(first, BlockRange{cut, last}), whole));
    }
    CHECK_THROWS_AS(run(start.clone(), BlockRange{0, last + 1}), std::invalid_argument);
    CHECK_THROWS_AS(run(start.clone(), BlockRange{2, 1}), std::invalid_argument);
  }
}
