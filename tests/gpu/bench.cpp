// Times on one GPU by its events: each fused kernel at the shapes of published models, over
// operands that the cache cannot hold, and steps of a PixArt-XL. Prints a JSON document a line
// (benchmarks/gpu).
#include <ATen/ATen.h>
#include <c10/core/Event.h>
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

#include "actors/stage/block_graphs.h"
#include "kernels/attention.h"
#include "kernels/cuda_library.h"
#include "kernels/elementwise.h"
#include "kernels/group_moments.h"
#include "kernels/kv_history.h"
#include "models/dit/pixart.h"
#include "models/dit/ports.h"
#include "tests/gpu/gpu.h"

using namespace troupe;

namespace {

/// Operands of a kernel's calls in a row have so many bytes together.
constexpr double kRotatedBytes = 220e6;

struct Options {
  bool list = false;    // names and bytes only; needs no device
  bool on_cpu = false;  // a rehearsal: small sizes, by the clock
  bool once = false;    // one launch of each kernel, for a profiler
  std::string only;     // what names contain
};

class Bench {
 public:
  Bench(at::Device device, bool once) : device_(device), once_(once) {}

  /// Microseconds of one call of `work`, the median of rounds of many calls.
  double microseconds(int launches, const std::function<void(int)>& work) const {
    if (device_.is_cpu() || once_) {
      const auto start = std::chrono::steady_clock::now();
      work(0);
      return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
          .count();
    }
    const c10::impl::VirtualGuardImpl guard(device_.type());
    std::vector<double> times;
    for (int round = 0; round <= kRounds; ++round) {
      c10::Event first(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
      c10::Event last(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
      first.record(guard.getStream(device_));
      for (int i = 0; i < launches; ++i)
        work(i);
      last.record(guard.getStream(device_));
      last.synchronize();
      if (round > 0) times.push_back(first.elapsedTime(last) * 1e3 / launches);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
  }

  at::Tensor random(at::IntArrayRef shape, at::ScalarType type = at::kBFloat16) const {
    return at::randn(shape, at::TensorOptions().device(device_)).to(type);
  }
  at::Device device() const { return device_; }
  /// Returns through how many sets of operands, of `bytes` each, calls go in turns.
  int sets(double bytes) const {
    return device_.is_cpu() ? 1 : std::clamp(static_cast<int>(kRotatedBytes / bytes) + 1, 2, 64);
  }

 private:
  static constexpr int kRounds = 9;
  at::Device device_;
  bool once_;
};

/// Tokens of one call of a model: guidance makes two batch items of PixArt's and SD3's.
struct Shape {
  const char* name;
  int64_t batch, rows, heads, width;

  int64_t all() const { return heads * width; }
  double bytes() const { return 2.0 * static_cast<double>(batch * rows * all()); }
};

constexpr Shape kShapes[] = {{"PixArt 1024 px", 2, 4096, 16, 72},
                             {"SD3 1024 px", 2, 4096 + 333, 24, 64},
                             {"FLUX 1024 px", 1, 4096 + 512, 24, 128},
                             {"Wan 480p", 1, 32760, 12, 128}};

using Work = std::function<void(int)>;

/// A kernel at one shape: what it must move at the least, and how its operands are made.
struct Case {
  std::string name;
  double bytes;
  std::function<Work(const Bench&)> prepare;
};

std::vector<at::Tensor> sets_of(const Bench& bench, double bytes, at::IntArrayRef shape) {
  std::vector<at::Tensor> made;
  for (int i = bench.sets(bytes); i > 0; --i)
    made.push_back(bench.random(shape));
  return made;
}

Work norm_modulate(const Bench& bench, const Shape& s) {
  const auto x = sets_of(bench, s.bytes(), {s.batch, s.rows, s.all()});
  const at::Tensor factor = bench.random({s.batch, s.all()});
  return [x, factor](int i) { kernels::norm_modulate(x[i % x.size()], factor, factor, 1e-6); };
}

Work add_gated(const Bench& bench, const Shape& s) {
  auto residual = sets_of(bench, 2 * s.bytes(), {s.batch, s.rows, s.all()});
  const auto y = sets_of(bench, 2 * s.bytes(), {s.batch, s.rows, s.all()});
  const at::Tensor gate = bench.random({s.batch, s.all()}), bias = bench.random({s.all()});
  return [residual, y, gate, bias](int i) mutable {
    kernels::add_gated(residual[i % y.size()], y[i % y.size()], gate, bias);
  };
}

Work norm_rotate(const Bench& bench, const Shape& s) {
  auto x = sets_of(bench, s.bytes(), {s.batch, s.rows, s.heads, s.width});
  const at::Tensor weight = bench.random({s.width}),
                   angle = bench.random({s.rows, s.width / 2}, at::kFloat);
  return [x, weight, cosine = angle.cos(), sine = angle.sin()](int i) mutable {
    kernels::norm_rotate(x[i % x.size()], weight, cosine, sine, 1e-6);
  };
}

Work kv_push(const Bench& bench, const Shape& s) {
  const auto fresh = sets_of(bench, 6 * s.bytes(), {s.rows, s.batch, 2, s.heads, s.width});
  std::vector<std::vector<at::Tensor>> versions(fresh.size());
  for (auto& version : versions)
    version = {bench.random(fresh[0].sizes()), bench.random(fresh[0].sizes())};
  const at::Tensor sums = at::zeros({s.batch, 2, 2}, fresh[0].options().dtype(at::kDouble));
  return [fresh, versions, sums](int i) {
    kernels::kv_push(versions[i % fresh.size()], fresh[i % fresh.size()], 2, sums);
  };
}

Work merge(const Bench& bench, const Shape& s) {
  const auto part = [&] {
    return kernels::PartialAttention{bench.random({s.batch, s.rows, s.heads, s.width}),
                                     bench.random({s.batch, s.rows, s.heads}, at::kFloat)};
  };
  std::vector<kernels::PartialAttention> into, other;
  for (int i = bench.sets(2 * s.bytes()); i > 0; --i) {
    into.push_back(part());
    other.push_back(part());
  }
  return [into, other](int i) mutable {
    kernels::merge_attention(into[i % into.size()], other[i % other.size()]);
  };
}

Work moments(const Bench& bench, int64_t channels, int64_t side, bool channels_last) {
  auto x =
      sets_of(bench, 2.0 * static_cast<double>(channels * side * side), {1, channels, side, side});
  if (channels_last)
    for (at::Tensor& picture : x)
      picture = picture.contiguous(at::MemoryFormat::ChannelsLast);
  return [x](int i) { kernels::group_moments(x[i % x.size()], 32); };
}

void add_moments(std::vector<Case>& cases, int64_t channels, int64_t side) {
  for (const bool last : {false, true})
    cases.push_back({"group moments [" + std::to_string(channels) + ", " + std::to_string(side) +
                         ", " + std::to_string(side) + "]" + (last ? ", channels last" : ""),
                     2.0 * static_cast<double>(channels * side * side),
                     [=](const Bench& bench) { return moments(bench, channels, side, last); }});
}

std::vector<Case> all_cases(bool small) {
  std::vector<Case> cases;
  for (Shape s : kShapes) {
    if (small) s.rows /= 64;
    const double size = s.bytes(), sums = 4.0 * static_cast<double>(s.batch * s.rows * s.heads),
                 angles = 4.0 * static_cast<double>(s.rows * s.width);
    const auto add = [&](const char* kernel, double bytes,
                         Work (*make)(const Bench&, const Shape&)) {
      cases.push_back({std::string(kernel) + ", " + s.name, bytes,
                       [s, make](const Bench& bench) { return make(bench, s); }});
    };
    add("norm + modulate", 2 * size, norm_modulate);
    add("gate + residual", 3 * size, add_gated);
    add("q/k norm + rotary", 2 * size + angles, norm_rotate);
    add("K,V push of 2 versions", 5 * 2 * size, kv_push);
    add("log-sum-exp merge", 3 * size + 3 * sums, merge);
  }
  add_moments(cases, 512, small ? 16 : 256);
  add_moments(cases, 128, small ? 32 : 1024);
  return cases;
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

void say(const std::string& name, double value, const char* unit, double bytes,
         const std::string& note) {
  std::printf(
      "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", \"bytes\": %.0f, \"note\": \"%s\"}\n",
      name.c_str(), value, unit, bytes, note.c_str());
  std::fflush(stdout);
}

void kernel_rows(const Bench& bench, const Options& options) {
  for (const Case& kernel : all_cases(options.on_cpu)) {
    if (kernel.name.find(options.only) == std::string::npos) continue;
    const Work work = kernel.prepare(bench);
    const double time = bench.microseconds(50, work);
    say(kernel.name, time, "us", kernel.bytes,
        std::to_string(static_cast<int>(kernel.bytes / time * 1e-3)) + " GB/s");
  }
}

void step_rows(const Bench& bench, const Options& options) {
  spec::PixArtSpec spec;
  if (options.on_cpu) spec.num_layers = 2;
  models::WeightLoader weights;
  weights.get = [&](const std::string&, at::IntArrayRef shape) {
    return bench.random(shape) * 0.02;
  };
  const models::StagePart all{{0, static_cast<int>(spec.num_layers)}, true, true};
  const models::PixArt model(spec, 8, all, weights, at::kBFloat16, bench.device());
  const at::Tensor text = bench.random({2, 120, spec.caption_channels});
  const auto caption =
      model.cache_caption(model.project_caption({{.states = text, .lengths = {}, .pooled = {}}}),
                          at::ones({2, 120}, text.options().dtype(at::kBool)));
  for (const int64_t side :
       options.on_cpu ? std::vector<int64_t>{8} : std::vector<int64_t>{32, 64, 128}) {
    Step step(model, *caption, {side, side}, bench.random({2, spec.in_channels, side, side}));
    actors::BlockGraphs graphs(nullptr);
    const std::string name = "a step of PixArt-XL at " + std::to_string(side * 8) + " px";
    const double plain = bench.microseconds(4, [&](int) { step.run(nullptr); });
    say(name, plain * 1e-3, "ms", 0,
        "of it launching " + std::to_string(step.launching() * 1e-3) + " ms");
    const double recorded = bench.microseconds(4, [&](int) { step.run(&graphs); });
    std::string why = "launching " + std::to_string(step.launching() * 1e-3) + " ms";
    if (graphs.counts().replayed == 0)
      why = "nothing was recorded: " + (graphs.failure().empty()
                                            ? kernels::GraphCache::why_plain(bench.device())
                                            : graphs.failure());
    std::replace(why.begin(), why.end(), '"', '\'');
    std::replace(why.begin(), why.end(), '\n', ' ');
    say(name + ", its blocks as a graph", recorded * 1e-3, "ms", 0, why);
  }
}

int measure(at::Device device, const Options& options) {
  const c10::InferenceMode inference;
  at::manual_seed(0);
  try {
    const Bench bench(device, options.once);
    kernel_rows(bench, options);
    if (options.only.empty()) step_rows(bench, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

/// Reads the command line. False if it makes no sense.
bool read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--list") {
      options.list = true;
    } else if (word == "--cpu") {
      options.on_cpu = true;
    } else if (word == "--once") {
      options.once = true;
    } else if (word == "--only" && i + 1 < argc) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "gpu_bench: unexpected argument \"%s\" (see gpu_bench --help)\n",
                   argv[i]);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--help") {
    std::printf(
        "usage: gpu_bench [--list | --cpu] [--once] [--only TEXT]\n"
        "Times of kernels and steps on the first GPU, a JSON document a line.\n"
        "  --list  names and bytes only; needs no device\n"
        "  --cpu   a rehearsal on the CPU, small sizes\n"
        "  --once  one launch of each kernel, for a profiler\n"
        "  --only  kernels whose name contains TEXT, and no steps\n");
    return 0;
  }
  Options options;
  if (!read(argc, argv, options)) return 2;
  if (options.list) {
    for (const Case& kernel : all_cases(false))
      std::printf("{\"name\": \"%s\", \"bytes\": %.0f}\n", kernel.name.c_str(), kernel.bytes);
    return 0;
  }
  if (options.on_cpu) return measure(at::kCPU, options);
  const auto device = testing::gpu();
  if (!device) {
    std::fprintf(stderr, "no GPU here: %s\n", testing::why_no_gpu().c_str());
    return 3;
  }
  if (!kernels::cuda_kernels()) {
    std::fprintf(stderr, "libtroupe_kernels_cuda.so is not found\n");
    return 1;
  }
  return measure(*device, options);
}
