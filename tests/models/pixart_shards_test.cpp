#include <atomic>
#include <exception>
#include <thread>

#include "tests/models/board_sum.h"
#include "tests/models/pixart_support.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

TEST_CASE("shards of the weights give together what the whole model gives") {
  const OneThread one_thread;
  for (const auto& [name, checkpoint] : {std::pair<std::string, std::string>{"wide", "tiny-pixart"},
                                         {"ms_tall_odd", "tiny-pixart-1024"}}) {
    const auto spec = spec_of(checkpoint, false);
    const Call call = call_of(name, 0, 1);
    const auto single = load_transformer(spec, whole(spec), at::kFloat, at::kCPU);
    const at::Tensor want = run(*single, call);
    for (const int degree : {2, 3, 5}) {  // of 2 and 3 heads
      CAPTURE(degree);
      std::vector<std::unique_ptr<DiffusionTransformer>> shards;
      for (int rank = 0; rank < degree; ++rank) {
        StagePart part = whole(spec);
        part.shard = {rank, degree};
        shards.push_back(load_transformer(spec, part, at::kFloat, at::kCPU));
      }
      int64_t heads = 0;
      for (const auto& shard : shards)
        heads += shard->heads();
      CHECK(heads == single->heads());
      Board board(degree);
      std::vector<at::Tensor> results(degree);
      std::vector<std::exception_ptr> failures(degree);
      std::vector<std::thread> threads;
      std::atomic<int> reductions{0};
      for (int rank = 0; rank < degree; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            BoardSum sums(board, rank, reductions);
            results[rank] = run(*shards[rank], call, sums);
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
      CHECK(error(results[0], want) < 1e-6);
      for (const at::Tensor& result : results)
        CHECK(at::equal(result, results[0]));
      CHECK(reductions == degree * 3 * spec.transformer.num_layers);
    }
  }
}

TEST_CASE("weight bytes of the blocks fall as 1/tp") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // Sizes that a kernel's panels of columns divide at every degree: nothing is padded.
    spec::PixArtSpec spec;
    spec.num_layers = 1;
    spec.num_attention_heads = 8;
    spec.attention_head_dim = 96;
    spec.caption_channels = 24;
    WeightLoader weights;
    weights.get = [&](const std::string&, at::IntArrayRef shape) {
      return at::zeros(shape, at::TensorOptions().dtype(dtype));
    };
    const auto bytes = [&](int blocks, WeightShard shard) {
      const PixArt part(spec, 8, {{0, blocks}, false, false, shard}, weights, dtype, at::kCPU);
      return part.bytes() - blocks * 6 * spec.inner_dim() * at::elementSize(dtype);
    };
    const int64_t common = bytes(0, {0, 1}), all = bytes(1, {0, 1}) - common;
    CHECK(all > 14 * 768 * 768 * at::elementSize(dtype));
    for (const int degree : {2, 4}) {
      int64_t together = 0;
      for (int rank = 0; rank < degree; ++rank) {
        const int64_t own = bytes(1, {rank, degree}) - common;
        together += own;
        CHECK(own * degree < all * 1.01);
        CHECK(own * degree > all * 0.99);
      }
      CHECK(together == all);
    }
  }
}
