// Time of one PixArt call with random weights: 12 blocks of 6 heads × 64, 32 × 32 tokens, batch 2.
// Compare with scripts that time diffusers' model of the same size in the same minutes.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "benchmarks/command_line.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "models/dit/pixart.h"
#include "models/dit/ports.h"

using namespace troupe;

namespace {

constexpr int64_t kCaptionTokens = 120;

struct Least {
  double wall = 1e30;
  double cpu = 1e30;  // all threads of the process: undisturbed by what else the machine does
};

template <class F>
Least least(int rounds, F&& work) {
  Least result;
  for (int i = 0; i < rounds; ++i) {
    const std::clock_t cpu = std::clock();
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    result.wall = std::min(result.wall, passed.count());
    result.cpu = std::min(result.cpu, static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC);
  }
  return result;
}

template <class F>
double least_seconds(int rounds, F&& work) {
  return least(rounds, work).cpu;
}

spec::PixArtSpec benchmark_spec() {
  spec::PixArtSpec spec;
  spec.num_attention_heads = 6;
  spec.attention_head_dim = 64;
  spec.cross_attention_dim = 384;
  spec.num_layers = 12;
  spec.sample_size = 64;
  spec.caption_channels = 256;
  spec.interpolation_scale = 1;
  spec.use_additional_conditions = false;
  return spec;
}

void print_share(const char* kind, double seconds, double whole) {
  std::printf("  %-24s %8.4f s  %5.1f %%\n", kind, seconds, 100 * seconds / whole);
}

void print_kinds(const spec::PixArtSpec& spec, int64_t batch, int64_t tokens, int rounds,
                 double whole) {
  const int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  const double blocks = static_cast<double>(spec.num_layers);
  const at::Tensor x = at::randn({batch, tokens, width}),
                   wide = at::randn({batch, tokens, 4 * width});
  const at::Tensor factor = at::randn({batch, width});
  const at::Tensor qkv = at::randn({batch, tokens, 3, heads, spec.attention_head_dim});
  const at::Tensor text = at::randn({batch, kCaptionTokens, 2, heads, spec.attention_head_dim});
  const auto linear = [](int64_t in, int64_t out) {
    return kernels::Linear(at::randn({out, in}) / 20, at::randn({out}));
  };
  const kernels::Linear joint = linear(width, 3 * width), square = linear(width, width);
  const kernels::Linear widen = linear(width, 4 * width), narrow = linear(4 * width, width);
  at::Tensor residual = at::randn({batch, tokens, width}), copy = wide.clone();

  print_share("matmul, tails and all",
              blocks * least_seconds(rounds,
                                     [&] {
                                       joint(x);
                                       square.add_gated_to(residual, x, factor);
                                       square(x);
                                       square.add_to(residual, x);
                                       widen.gelu(x);
                                       narrow.add_gated_to(residual, wide, factor);
                                     }),
              whole);
  print_share("attention, self",
              blocks * least_seconds(rounds,
                                     [&] {
                                       kernels::attention(qkv.select(2, 0), qkv.select(2, 1),
                                                          qkv.select(2, 2), 0.125);
                                     }),
              whole);
  print_share("attention, caption",
              blocks * least_seconds(rounds,
                                     [&] {
                                       kernels::attention(qkv.select(2, 0), text.select(2, 0),
                                                          text.select(2, 1), 0.125);
                                     }),
              whole);
  print_share(
      "norm + modulate",
      blocks * 2 * least_seconds(rounds, [&] { kernels::norm_modulate(x, factor, factor, 1e-6); }),
      whole);
  print_share("(gelu, within matmul)",
              blocks * least_seconds(rounds, [&] { kernels::gelu_tanh_(copy); }), whole);
  print_share("(ATen attention, self)",
              blocks * least_seconds(rounds,
                                     [&] {
                                       const auto head = [&](int64_t i) {
                                         return qkv.select(2, i).transpose(1, 2);
                                       };
                                       at::scaled_dot_product_attention(head(0), head(1), head(2));
                                     }),
              whole);
  print_share("(ATen linear, joint qkv)",
              blocks * least_seconds(rounds,
                                     [&] {
                                       static const at::Tensor weight =
                                                                   at::randn({3 * width, width}),
                                                               bias = at::randn({3 * width});
                                       at::linear(x, weight, bias);
                                     }),
              whole);
  print_share("(own linear, joint qkv)", blocks * least_seconds(rounds, [&] { joint(x); }), whole);
}

int run(int threads, int rounds, int64_t batch) {
  at::set_num_threads(threads);
  const c10::InferenceMode inference;
  at::manual_seed(0);

  const spec::PixArtSpec spec = benchmark_spec();
  models::WeightLoader weights;
  weights.get = [](const std::string&, at::IntArrayRef shape) { return at::randn(shape) * 0.02; };
  const models::StagePart all{{0, static_cast<int>(spec.num_layers)}, true, true};
  const models::PixArt model(spec, 8, all, weights, at::kFloat, at::kCPU);

  const models::PictureSize size{64, 64};
  const models::TokenRows rows{0, 32};
  const at::Tensor latents = at::randn({batch, 4, 64, 64});
  const auto caption = model.cache_caption(
      model.project_caption({{.states = at::randn({batch, kCaptionTokens, spec.caption_channels}),
                              .lengths = {},
                              .pooled = {}}}),
      at::ones({batch, kCaptionTokens}, at::kBool));
  const Least whole = least(rounds, [&] {
    models::LocalAttention attention;
    models::WholeWeights sums;
    const auto step = model.condition({500, 1, size}, *caption);
    const at::Tensor hidden = model.run_blocks(model.embed(latents, size, rows), {size, {rows}},
                                               *step, *caption, attention, sums);
    model.project(hidden, *step, size, rows);
  });
  std::printf("threads %d, batch %lld: %.4f s per call, %.4f CPU seconds, of these:\n", threads,
              static_cast<long long>(batch), whole.wall, whole.cpu);
  print_kinds(spec, batch, 1024, std::min(rounds, 10), whole.cpu);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace bench;
  int threads = 1, rounds = 5;
  int64_t batch = 2;
  CLI::App app{"Seconds of one PixArt call with random weights, and where they go",
               "pixart_forward"};
  app.add_option("THREADS", threads, "To compute with")
      ->check(whole(1, 1024))
      ->capture_default_str();
  app.add_option("ROUNDS", rounds, "The least of them counts")
      ->check(whole(1, 100'000))
      ->capture_default_str();
  app.add_option("BATCH", batch, "Pictures of the call")
      ->check(whole(1, 1024))
      ->capture_default_str();
  return run_program(app, argc, argv, [&] { return run(threads, rounds, batch); });
}
