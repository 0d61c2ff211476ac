// Times on one GPU, as Markdown tables: each fused kernel beside the same in ATen's passes, and a
// PixArt of published size. Medians of rounds; a round is many launches and one wait.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/block_graphs.h"
#include "kernels/attention.h"
#include "kernels/cuda_library.h"
#include "kernels/elementwise.h"
#include "kernels/group_moments.h"
#include "kernels/kv_history.h"
#include "kernels/norm_rotate.h"
#include "models/dit/local_attention.h"
#include "models/dit/pixart.h"
#include "tests/gpu/gpu.h"

using namespace troupe;

namespace {

constexpr int kRounds = 9;

class Bench {
 public:
  explicit Bench(at::Device device) : device_(device) {}

  double microseconds(int launches, const std::function<void()>& work) const {
    std::vector<double> times;
    work();
    for (int round = 0; round < kRounds; ++round) {
      wait();
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < launches; ++i)
        work();
      wait();
      const std::chrono::duration<double, std::micro> passed =
          std::chrono::steady_clock::now() - start;
      times.push_back(passed.count() / launches);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
  }

  at::Tensor random(at::IntArrayRef shape) const {
    return at::randn(shape, at::TensorOptions().device(device_)).to(at::kBFloat16);
  }
  at::Device device() const { return device_; }

 private:
  void wait() const { c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(device_.index()); }
  at::Device device_;
};

/// `bytes`: what must move at the least.
void row(const Bench& bench, const char* name, double bytes, const std::function<void()>& own,
         const std::function<void()>& library) {
  const double ours = bench.microseconds(50, own), theirs = bench.microseconds(50, library);
  std::printf("| %s | %.1f | %.1f | %.2f | %.0f |\n", name, ours, theirs, theirs / ours,
              bytes / ours * 1e-3);
  std::fflush(stdout);
}

void kernel_table(const Bench& bench) {
  constexpr int64_t kBatch = 2, kRows = 4096, kHeads = 16, kWidth = 72, kAll = kHeads * kWidth;
  const double size = 2.0 * kBatch * kRows * kAll;
  const at::Tensor x = bench.random({kBatch, kRows, kAll}), y = bench.random({kBatch, kRows, kAll}),
                   factor = bench.random({kBatch, kAll}), bias = bench.random({kAll});
  at::Tensor residual = bench.random({kBatch, kRows, kAll});
  std::printf("bfloat16, [2, 4096, 16 x 72] as PixArt-XL has at 1024 px\n\n");
  std::printf("| kernel | own, us | ATen's passes, us | times | GB/s |\n|---|---|---|---|---|\n");
  row(
      bench, "copy (the ceiling)", 2 * size, [&] { residual.copy_(x); },
      [&] { residual.copy_(x); });
  row(
      bench, "norm + modulate", 2 * size, [&] { kernels::norm_modulate(x, factor, factor, 1e-6); },
      [&] {
        at::layer_norm(x, {kAll}, {}, {}, 1e-6)
            .mul_(1 + factor.unsqueeze(1))
            .add_(factor.unsqueeze(1));
      });
  row(
      bench, "gate + residual", 3 * size, [&] { kernels::add_gated(residual, y, factor, bias); },
      [&] { residual.addcmul_(y + bias, factor.unsqueeze(1)); });
  const at::Tensor heads = x.view({kBatch, kRows, kHeads, kWidth}), weight = bench.random({kWidth}),
                   angle = at::randn({kRows, kWidth / 2}, x.options().dtype(at::kFloat));
  const at::Tensor cosine = angle.cos(), sine = angle.sin();
  at::Tensor turned = heads.clone();
  row(
      bench, "q norm + rotary", 2 * size,
      [&] { kernels::norm_rotate(turned, weight, cosine, sine, 1e-6); },
      [&] {
        const at::Tensor normal = at::rms_norm(turned, {kWidth}, weight, 1e-6).to(at::kFloat);
        const auto half = [&](int64_t first) { return normal.slice(3, first, kWidth, 2); };
        const at::Tensor c = cosine.unsqueeze(1), s = sine.unsqueeze(1);
        turned.slice(3, 0, kWidth, 2).copy_(half(0) * c - half(1) * s);
        turned.slice(3, 1, kWidth, 2).copy_(half(1) * c + half(0) * s);
      });

  const at::Tensor fresh = bench.random({kRows, kBatch, 2, kHeads, kWidth});
  std::vector<at::Tensor> versions(3);
  for (at::Tensor& version : versions)
    version = bench.random(fresh.sizes());
  const at::Tensor sums = at::zeros({kBatch, 2, 2}, fresh.options().dtype(at::kDouble));
  row(
      bench, "K,V push of 3 versions with sums", 6 * 2 * size,
      [&] { kernels::kv_push(versions, fresh, 3, sums); },
      [&] {
        const at::Tensor newest = versions[0].to(at::kFloat), step = newest - versions[1];
        sums.select(2, 0).add_(((fresh - newest) * step).sum({0, 3, 4}, false, at::kDouble));
        sums.select(2, 1).add_((step * step).sum({0, 3, 4}, false, at::kDouble));
        versions[2].copy_(versions[1]);
        versions[1].copy_(versions[0]);
        versions[0].copy_(fresh);
      });
  const auto part = [&] {
    return kernels::PartialAttention{heads.clone(),
                                     at::randn({kBatch, kRows, kHeads}, angle.options())};
  };
  kernels::PartialAttention into = part();
  const kernels::PartialAttention other = part();
  row(
      bench, "log-sum-exp merge", 3 * size, [&] { kernels::merge_attention(into, other); },
      [&] {
        const at::Tensor top = at::maximum(into.log_sum_exp, other.log_sum_exp);
        const at::Tensor a = (into.log_sum_exp - top).exp(), b = (other.log_sum_exp - top).exp();
        const at::Tensor total = a + b;
        into.out.copy_(into.out * (a / total).unsqueeze(3) + other.out * (b / total).unsqueeze(3));
        into.log_sum_exp.copy_(top + total.log());
      });
  const at::Tensor picture = bench.random({1, 256, 512, 512});
  row(
      bench, "group moments [1, 256, 512, 512]", 2.0 * 256 * 512 * 512,
      [&] { kernels::group_moments(picture, 32); },
      [&] {
        at::var_mean(picture.view({32, -1}).to(at::kFloat), at::IntArrayRef{1}, 0);
      });

  const auto run = [&](bool older) {
    const auto side = [&](int version, int i) {
      return versions[version].select(2, i).transpose(0, 1);
    };
    kernels::KeyValueRun made{side(0, 0), side(0, 1), {}, {}, {}};
    if (older) {
      made.older_k = side(1, 0);
      made.older_v = side(1, 1);
      made.alpha = at::rand({kBatch, 2}, angle.options());
    }
    return std::vector<kernels::KeyValueRun>{made};
  };
  const auto plain = run(false), predicted = run(true);
  std::printf("\nSelf attention, 4096 queries and keys: %.0f us; with extrapolated K,V %.0f us\n",
              bench.microseconds(10, [&] { kernels::attention(heads, plain, 0.118); }),
              bench.microseconds(10, [&] { kernels::attention(heads, predicted, 0.118); }));
}

/// A whole step as a job computes it, and how much of it the host takes to launch.
class Step {
 public:
  Step(const models::PixArt& model, const models::CaptionCache& caption, models::PictureSize size,
       at::Tensor latents)
      : model_(model), caption_(caption), size_(size), latents_(std::move(latents)) {}

  void run(actors::BlockGraphs* graphs) {
    const auto start = std::chrono::steady_clock::now();
    const models::TokenRows rows{0, size_.latent_height / model_.patch_size()};
    auto fresh = model_.condition({500, 1, size_}, caption_);
    if (condition_) {
      condition_->take(*fresh);
    } else {
      condition_ = std::move(fresh);
    }
    const auto compute = [&](at::Tensor hidden, actors::LayerWatch&) {
      models::LocalAttention attention;
      models::WholeWeights sums;
      return model_.run_blocks(std::move(hidden), {size_, {rows}}, *condition_, caption_, attention,
                               sums);
    };
    actors::LayerWatch layers;
    at::Tensor hidden = model_.embed(latents_, size_, rows);
    hidden = graphs ? graphs->run({"", 0, {}}, hidden, layers, compute)
                    : compute(std::move(hidden), layers);
    model_.project(hidden, *condition_, size_, rows);
    launching_ =
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
  }
  double launching() const { return launching_; }

 private:
  const models::PixArt& model_;
  const models::CaptionCache& caption_;
  models::PictureSize size_;
  at::Tensor latents_;
  std::unique_ptr<models::StepCondition> condition_;
  double launching_ = 0;
};

void model_table(const Bench& bench) {
  spec::PixArtSpec spec;
  models::WeightLoader weights;
  weights.get = [&](const std::string&, at::IntArrayRef shape) {
    return bench.random(shape) * 0.02;
  };
  const models::StagePart all{{0, static_cast<int>(spec.num_layers)}, true, true};
  const models::PixArt model(spec, 8, all, weights, at::kBFloat16, bench.device());
  std::printf("\nPixArt-XL, 28 blocks, random weights, bfloat16, batch 2 (guidance)\n\n");
  std::printf("| picture | ms a step | of it launching | with graphs | of it launching |\n");
  std::printf("|---|---|---|---|---|\n");
  const at::Tensor text = bench.random({2, 120, spec.caption_channels});
  const auto caption =
      model.cache_caption(model.project_caption({{.states = text, .lengths = {}, .pooled = {}}}),
                          at::ones({2, 120}, text.options().dtype(at::kBool)));
  std::string why;
  for (const int64_t side : {32, 64, 128}) {
    Step step(model, *caption, {side, side}, bench.random({2, spec.in_channels, side, side}));
    actors::BlockGraphs graphs(nullptr);
    const double plain = bench.microseconds(1, [&] { step.run(nullptr); });
    const double launching = step.launching();
    const double recorded = bench.microseconds(1, [&] { step.run(&graphs); });
    std::printf("| %lld px | %.2f | %.2f | %.2f | %.2f |\n", static_cast<long long>(side * 8),
                plain * 1e-3, launching * 1e-3, recorded * 1e-3, step.launching() * 1e-3);
    if (graphs.counts().replayed == 0)
      why = graphs.failure().empty() ? kernels::GraphCache::why_plain(bench.device())
                                     : graphs.failure();
  }
  if (!why.empty()) std::printf("\nNothing was recorded: %s\n", why.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    if (std::string_view(argv[1]) == "--help") {
      std::printf("usage: gpu_bench; prints tables of kernels and models on the first GPU\n");
      return 0;
    }
    std::fprintf(stderr, "gpu_bench: unexpected argument \"%s\" (see gpu_bench --help)\n", argv[1]);
    return 2;
  }
  const auto device = testing::gpu();
  if (!device) {
    std::fprintf(stderr, "no GPU here: %s\n", testing::why_no_gpu().c_str());
    return 3;
  }
  if (!kernels::cuda_kernels()) {
    std::fprintf(stderr, "libtroupe_kernels_cuda.so is not found\n");
    return 1;
  }
  const c10::InferenceMode inference;
  at::manual_seed(0);
  try {
    const Bench bench(*device);
    kernel_table(bench);
    model_table(bench);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
