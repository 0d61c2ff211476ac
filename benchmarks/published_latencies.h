#pragma once
#include <string>
#include <vector>

namespace troupe::published {

/// Settings with which a row was run. `best`: the authors' best mix of cfg, pp and sequence
/// parallelism, which they do not name; patches and mix are then the ones that the simulation finds
/// quickest.
struct Run {
  /// one | best | tp | ulysses | ring | usp | distrifusion | naive | silent | synchronous |
  /// pipefusion; naive: patches that see nothing of each other, silent: DistriFusion's work without
  /// its exchange (its table's "No Comm."), synchronous: everything is told in each step.
  std::string how;
  int devices = 1;
  int ulysses = 1;  // usp, pipefusion
  int ring = 1;
  int cfg = 1;
  int warmup = 1;
};

/// Way in which the operations of a run reached the device.
enum class Runtime {
  eager,         ///< one by one, by Python
  graph_breaks,  ///< torch.compile before flash-attn 2.7 (November 2024) could be part of a graph
  compiled,  ///< whole blocks: torch.compile since then, OneDiff, TensorRT, and engines like these
  captured,  ///< eager operations in CUDA graphs
};

struct Row {
  int pixels = 0;  // a side
  Run run;
  double seconds = 0;
};

struct Table {
  std::string name;
  std::string model;    // one of those that planner_error has shapes of
  std::string machine;  // of controller/plan/machine.h
  int steps = 20;
  Runtime runtime = Runtime::eager;
  std::vector<Row> rows;
  bool around = false;  // with text encoder and VAE
};

/// Latencies that xDiT's documentation and figures and the PipeFusion paper print, in seconds.
/// Figures whose labels contradict their axes are left out, and so is what does not name its
/// hardware. xDiT's benchmarks ask for latents: neither text encoder nor VAE counts much. The
/// figures of FLUX.1-schnell are of whole pictures: beside those of FLUX.1-dev on as many A100,
/// they have the same 0.3 s more at each number of devices.
inline std::vector<Table> tables() {
  const auto line = [](int pixels, std::vector<double> seconds, int first = 1) {
    std::vector<Row> rows;
    int devices = first;
    for (const double value : seconds) {
      rows.push_back({pixels, {devices == 1 ? "one" : "best", devices}, value});
      devices *= 2;
    }
    return rows;
  };
  const auto mixed = [](std::vector<Row> rows, int devices, int pixels, const Run& run) {
    for (auto& row : rows)
      if (row.run.devices == devices && row.pixels == pixels) row.run = run;
    return rows;
  };
  /// All sequence parallelism by Ulysses, as the documentation names the best mix.
  const auto ulysses = [&line](int pixels, std::vector<double> seconds) {
    auto rows = line(pixels, std::move(seconds));
    for (auto& row : rows)
      if (row.run.devices > 1) row.run = {"ulysses", row.run.devices};
    return rows;
  };
  const auto join = [](std::vector<std::vector<Row>> parts) {
    std::vector<Row> all;
    for (const auto& part : parts)
      all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  /// One size of the tables that compare methods; 0 = not run or out of memory.
  const auto methods = [](int devices, int pixels, double one, double tp, double pipefusion,
                          double distrifusion, double ulysses, double ring) {
    std::vector<Row> rows{{pixels, {"one", 1}, one}};
    const auto add = [&](const char* how, double seconds) {
      if (seconds > 0) rows.push_back({pixels, {how, devices}, seconds});
    };
    add("tp", tp), add("pipefusion", pipefusion), add("distrifusion", distrifusion);
    add("ulysses", ulysses), add("ring", ring);
    return rows;
  };
  const auto usp = [](std::vector<double> seconds) {
    const int degrees[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}};
    std::vector<Row> rows;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      const auto [u, r] = degrees[i];
      rows.push_back({1024, {u * r == 1 ? "one" : "usp", u * r, u, r}, seconds[i]});
    }
    return rows;
  };
  return {
      {"PixArt, best mix, L40 PCIe", "pixart", "l40", 20, Runtime::eager,
       join({line(1024, {2.8, 1.4, 0.82, 0.62, 0.69}), line(2048, {21.6, 10.66, 5.43, 3.09, 2.07}),
             line(4096, {244.89, 120.61, 60.81, 33, 16.9})})},
      {"SD3-medium, best mix, L40 PCIe", "sd3", "l40", 20, Runtime::eager,
       join({line(1024, {3.92, 1.91, 1.26, 0.91, 0.82}),
             line(2048, {22.82, 11.12, 6.15, 3.67, 2.54})})},
      {"FLUX.1-dev, best mix, L40 PCIe", "flux", "l40", 28, Runtime::eager,
       join({mixed(line(1024, {18.36, 11.03, 7.05, 5.53, 4.78}), 16, 1024, {"pipefusion", 16, 4}),
             line(2048, {105.7, 58.15, 30.1, 18.68, 27.99}),
             mixed(line(4096, {855.13, 470.83, 235.95, 133.64, 70.32}), 16, 4096,
                   {"pipefusion", 16, 2, 2})})},
      {"FLUX.1-schnell, best mix, L40 PCIe", "flux", "l40", 4, Runtime::eager,
       join({mixed(line(1024, {3.18, 1.87, 1.87, 1.53}), 4, 1024, {"usp", 4, 2, 2}),
             line(2048, {14.71, 8.62, 4.46, 3.67})}),
       true},
      {"PixArt, best mix, A100 NVLink", "pixart", "a100-nvlink", 20, Runtime::eager,
       join({line(1024, {1.99, 1.02, 0.88, 0.69}), line(2048, {15.8, 8.32, 4.22, 2.27}),
             line(4096, {186.08, 91.01, 44.97, 22.11})})},
      {"SD3-medium, best mix, A100 NVLink", "sd3", "a100-nvlink", 20, Runtime::eager,
       join({line(1024, {2.71, 1.43, 1.01, 0.94}), line(2048, {15.91, 8.11, 4.58, 2.81})})},
      {"FLUX.1-dev, best mix, A100 NVLink", "flux", "a100-nvlink", 28, Runtime::eager,
       ulysses(1024, {12.77, 8.16, 5.55, 4.13})},
      {"FLUX.1-schnell, best mix, A100 NVLink", "flux", "a100-nvlink", 4, Runtime::eager,
       join({ulysses(1024, {2.18, 1.48, 1.12, 0.93}), ulysses(2048, {11.06, 6.17, 3.8, 2.63})}),
       true},
      {"FLUX.1-dev, USP, H100 NVLink, eager", "flux", "h100-nvlink", 28, Runtime::eager,
       usp({6.71, 4.38, 5.31, 5.19, 4.24, 5.11})},
      {"FLUX.1-dev, USP, H100 NVLink, compiled", "flux", "h100-nvlink", 28, Runtime::compiled,
       usp({4.30, 2.68, 2.60, 1.80, 1.63, 1.98})},
      {"PixArt by method, 8 L40 PCIe", "pixart", "l40", 20, Runtime::eager,
       join({methods(8, 1024, 2.8, 2.7, 0.62, 1.27, 5.62, 1.47),
             {{1024, {"pipefusion", 8, 1, 1, 2}, 0.55}}})},
      {"Warm-up 0, 1, 2 of PixArt, pp 8, L40 PCIe",
       "pixart",
       "l40",
       20,
       Runtime::eager,
       {{1024, {"one", 1}, 2.8},
        {1024, {"pipefusion", 8, 1, 1, 1, 0}, 0.71},
        {1024, {"pipefusion", 8, 1, 1, 1, 1}, 0.82},
        {1024, {"pipefusion", 8, 1, 1, 1, 2}, 0.91},
        {1024, {"pipefusion", 16, 1, 1, 2, 0}, 0.66},
        {1024, {"pipefusion", 16, 1, 1, 2, 1}, 0.69},
        {1024, {"pipefusion", 16, 1, 1, 2, 2}, 0.70}}},
      {"Warm-up 0, 1, 2 of SD3, pp 8, L40 PCIe",
       "sd3",
       "l40",
       20,
       Runtime::eager,
       {{1024, {"one", 1}, 3.92},
        {1024, {"pipefusion", 8, 1, 1, 1, 0}, 1.05},
        {1024, {"pipefusion", 8, 1, 1, 1, 1}, 1.16},
        {1024, {"pipefusion", 8, 1, 1, 1, 2}, 1.27},
        {1024, {"pipefusion", 16, 1, 1, 2, 0}, 0.83},
        {1024, {"pipefusion", 16, 1, 1, 2, 1}, 0.87},
        {1024, {"pipefusion", 16, 1, 1, 2, 2}, 0.92}}},
      {"Warm-up 0, 1, 2 of FLUX.1-dev, pp 8, L40 PCIe",
       "flux",
       "l40",
       28,
       Runtime::eager,
       {{1024, {"one", 1}, 18.36},
        {1024, {"pipefusion", 8, 1, 1, 1, 0}, 5.48},
        {1024, {"pipefusion", 8, 1, 1, 1, 1}, 5.53},
        {1024, {"pipefusion", 8, 1, 1, 1, 2}, 6.00}}},
      {"PixArt by method, 8 A100 NVLink", "pixart", "a100-nvlink", 20, Runtime::eager,
       join({methods(8, 1024, 2.085, 1.221, 0.9686, 0.7653, 1.1, 2.08),
             methods(8, 2048, 16.22, 7.066, 4.061, 2.476, 2.46, 4.47),
             methods(8, 4096, 183.6, 36.33, 45.04, 25.24, 23.31, 27.41),
             methods(8, 8192, 2728, 455.9, 616.8, 0, 346.31, 363.63)})},
      {"PixArt, PipeFusion's paper, 8 A100 NVLink",
       "pixart",
       "a100-nvlink",
       20,
       Runtime::eager,
       {{1024, {"one", 1}, 2.085},
        {2048, {"one", 1}, 16.22},
        {4096, {"one", 1}, 183.6},
        {1024, {"pipefusion", 8}, 0.66},
        {2048, {"pipefusion", 8}, 2.59},
        {4096, {"pipefusion", 8}, 22.39}}},
      {"PixArt by method, 4 A100 PCIe", "pixart", "a100-pcie", 20, Runtime::eager,
       join({methods(4, 1024, 2.085, 4.915, .866, 2.331, 1.741, 2.633),
             methods(4, 2048, 16.22, 19.45, 5.37, 9.622, 7.932, 11.05),
             methods(4, 4096, 183.6, 105.7, 60.15, 68.35, 59.01, 65.85),
             methods(4, 8192, 2728, 966, 880.2, 0, 710.95, 797.66)})},
      {"PixArt by method, 8 L20 PCIe", "pixart", "l20", 20, Runtime::eager,
       join({methods(8, 1024, 3.34, 8.42, .85, 4.43, 5.99, 1.74),
             methods(8, 2048, 26.43, 14.3, 5.01, 6.317, 19.03, 6.62),
             methods(8, 4096, 306.6, 82.49, 55.53, 0, 116.88, 49.87)})},
      {"PixArt, USP, 8 L20 PCIe",
       "pixart",
       "l20",
       20,
       Runtime::eager,
       {{1024, {"one", 1}, 3.34},
        {2048, {"one", 1}, 26.43},
        {4096, {"one", 1}, 306.6},
        {1024, {"usp", 8, 2, 4}, 1.33},
        {2048, {"usp", 8, 2, 4}, 6.03},
        {4096, {"usp", 8, 2, 4}, 47.63}}},
      {"PixArt by method, 4 T4 PCIe", "pixart", "t4", 20, Runtime::eager,
       join({methods(4, 512, 3.19, 2.52, 1.29, 1.34, 1.35, 0),
             methods(4, 1024, 19, 10.21, 6.7, 0, 6.04, 0),
             methods(4, 2048, 201.92, 74.06, 67.82, 0, 56.18, 0)})},
  };
}

/// Latencies that xDiT prints twice, as PyTorch runs and through torch.compile. Mixes are the ones
/// that its figures name: cfg 2 on two devices, with pp 2 on four and pp 4 on eight; `best` where
/// none is named.
inline std::vector<Table> compiled_tables() {
  const auto named = [](int pixels, std::vector<double> seconds) {
    std::vector<Row> rows;
    int devices = 1;
    for (const double value : seconds) {
      rows.push_back({pixels, {devices == 1 ? "one" : "pipefusion", devices, 1, 1, 2}, value});
      devices *= 2;
    }
    return rows;
  };
  const auto by = [](const char* how) {
    return [how](int pixels, std::vector<double> seconds) {
      std::vector<Row> rows;
      int devices = 1;
      for (const double value : seconds) {
        rows.push_back({pixels, {devices == 1 ? "one" : how, devices}, value});
        devices *= 2;
      }
      return rows;
    };
  };
  const auto best = by("best");
  const auto ulysses = by("ulysses");
  const auto join = [](std::vector<Row> one, const std::vector<Row>& other) {
    one.insert(one.end(), other.begin(), other.end());
    return one;
  };
  /// u2, cfg 2 × pp 2, cfg 2 × pp 4.
  const auto hunyuan = [](std::vector<double> seconds) {
    return std::vector<Row>{{1024, {"one", 1}, seconds[0]},
                            {1024, {"usp", 2, 2, 1}, seconds[1]},
                            {1024, {"pipefusion", 4, 1, 1, 2}, seconds[2]},
                            {1024, {"pipefusion", 8, 1, 1, 2}, seconds[3]}};
  };
  return {
      {"PixArt, cfg × pp, L40 PCIe, eager", "pixart", "l40", 20, Runtime::eager,
       join(named(1024, {2.79, 1.4, .82, .62}), named(2048, {21.67, 10.7, 5.26, 2.75}))},
      {"PixArt, cfg × pp, L40 PCIe, compiled", "pixart", "l40", 20, Runtime::graph_breaks,
       join(named(1024, {2.54, 1.31, .76, .54}), named(2048, {20.75, 11.63, 4.9, 2.62}))},
      {"PixArt, A100 NVLink, eager", "pixart", "a100-nvlink", 20, Runtime::eager,
       join(best(1024, {1.97, .98, .86, .91}), best(2048, {15.52, 8.21, 4.02, 2.12}))},
      {"PixArt, A100 NVLink, compiled", "pixart", "a100-nvlink", 20, Runtime::graph_breaks,
       join(best(1024, {1.81, .93, .85, .9}), best(2048, {14.48, 8.94, 3.75, 1.98}))},
      {"SD3-medium, A100 NVLink, eager", "sd3", "a100-nvlink", 20, Runtime::eager,
       named(1024, {3.09, 1.73, 1.31, .9})},
      {"SD3-medium, A100 NVLink, compiled", "sd3", "a100-nvlink", 20, Runtime::graph_breaks,
       named(1024, {2.54, 1.51, 1.17, 1.15})},
      {"SD3-medium, L40 PCIe, eager", "sd3", "l40", 20, Runtime::eager,
       best(1024, {3.92, 2.18, 1.52, 1.26})},
      {"SD3-medium, L40 PCIe, compiled", "sd3", "l40", 20, Runtime::graph_breaks,
       best(1024, {3.59, 1.99, 1.41, 1.2})},
      {"FLUX.1-schnell, A100 NVLink, compiled", "flux", "a100-nvlink", 4, Runtime::graph_breaks,
       join(ulysses(1024, {1.88, 1.25, .96, .82}), ulysses(2048, {10.31, 5.42, 3.4, 2.4})), true},
      {"FLUX.1-schnell, L40 PCIe, compiled", "flux", "l40", 4, Runtime::graph_breaks,
       join(best(1024, {2.89, 2.07, 1.44, 1.45}), best(2048, {12.39, 8.86, 6.52, 4.01})), true},
      {"HunyuanDiT, A100 NVLink, eager", "hunyuan", "a100-nvlink", 50, Runtime::eager,
       hunyuan({18.01, 12.45, 8.19, 7.13})},
      {"HunyuanDiT, A100 NVLink, compiled", "hunyuan", "a100-nvlink", 50, Runtime::graph_breaks,
       hunyuan({14.21, 9.05, 5.18, 4.04})},
      {"HunyuanDiT, L40 PCIe, eager", "hunyuan", "l40", 50, Runtime::eager,
       best(1024, {20.16, 10.04, 7.45, 7.41})},
      {"HunyuanDiT, L40 PCIe, compiled", "hunyuan", "l40", 50, Runtime::graph_breaks,
       best(1024, {14.03, 7.58, 6.13, 6.14})},
  };
}

/// DistriFusion's own tables of SDXL: A100 with NVLink, float16, CUDA graphs, DDIM, five
/// synchronous steps unless a row says otherwise. What is printed as a factor is turned into
/// seconds.
inline std::vector<Table> unet_tables() {
  const auto patches = [](int pixels, const char* how, int devices, double seconds, int warmup = 5,
                          int cfg = 1) {
    return Row{pixels, {how, devices, 1, 1, cfg, warmup}, seconds};
  };
  const auto one = [](int pixels, double seconds) { return Row{pixels, {"one", 1}, seconds}; };
  return {
      {"SDXL, DistriFusion, A100 NVLink",
       "sdxl",
       "a100-nvlink",
       50,
       Runtime::captured,
       {one(1024, 5.02), patches(1024, "distrifusion", 2, 3.35),
        patches(1024, "distrifusion", 4, 2.26), patches(1024, "distrifusion", 8, 1.77),
        one(2048, 23.7), patches(2048, "distrifusion", 2, 13.3),
        patches(2048, "distrifusion", 4, 7.6), patches(2048, "distrifusion", 8, 4.81),
        one(3840, 140), patches(3840, "distrifusion", 2, 76.6),
        patches(3840, "distrifusion", 4, 41.3), patches(3840, "distrifusion", 8, 22.9),
        patches(3840, "distrifusion", 4, 140 / 3.6, 5, 2),
        patches(3840, "distrifusion", 8, 140 / 6.6, 5, 2)}},
      {"SDXL, other patches, A100 NVLink",
       "sdxl",
       "a100-nvlink",
       50,
       Runtime::captured,
       {one(1024, 5.02), patches(1024, "naive", 2, 2.83), patches(1024, "naive", 4, 1.74),
        patches(1024, "naive", 8, 1.27), patches(1024, "silent", 8, 1.48),
        patches(1024, "synchronous", 8, 2.21), one(2048, 23.7), patches(2048, "silent", 8, 4.14),
        patches(2048, "synchronous", 8, 5.62), one(3840, 140), patches(3840, "silent", 8, 21.3),
        patches(3840, "synchronous", 8, 24.7)}},
      {"SDXL, DistriFusion, 25 steps",
       "sdxl",
       "a100-nvlink",
       25,
       Runtime::captured,
       {one(1024, 2.52), patches(1024, "distrifusion", 8, 0.93)}},
      {"SDXL, DistriFusion, 10 steps",
       "sdxl",
       "a100-nvlink",
       10,
       Runtime::captured,
       {one(1024, 1.01), patches(1024, "distrifusion", 8, 0.374, 1),
        patches(1024, "distrifusion", 8, 0.388, 2), patches(1024, "distrifusion", 8, 0.4, 3)}},
  };
}

/// Latencies that other engines print of one H100 or A100, or of eight; an H800 computes as an
/// H100. Pictures whose size is not named are taken to have 1024 pixels a side.
inline std::vector<Table> engine_tables() {
  const auto one = [](double seconds, int pixels = 1024) {
    return std::vector<Row>{{pixels, {"one", 1}, seconds}};
  };
  const auto eight = [](double alone, double by_eight) {
    return std::vector<Row>{{480, {"one", 1}, alone}, {480, {"best", 8}, by_eight}};
  };
  return {
      {"FLUX.1-dev, SGLang, H100", "flux", "h100-nvlink", 50, Runtime::compiled, one(6.45)},
      {"SD3-medium, H800, eager", "sd3", "h100-nvlink", 28, Runtime::eager, one(2.03), true},
      {"SD3-medium, H800, OneDiff", "sd3", "h100-nvlink", 28, Runtime::compiled, one(1.21), true},
      {"SDXL, H100, eager", "sdxl", "h100-nvlink", 30, Runtime::eager, one(2.5), true},
      {"SDXL, H100, TensorRT", "sdxl", "h100-nvlink", 30, Runtime::compiled, one(1.47), true},
      {"PixArt, A100, eager", "pixart", "a100-nvlink", 20, Runtime::eager, one(2.61), true},
      {"PixArt, A100, OneDiff", "pixart", "a100-nvlink", 20, Runtime::compiled, one(2.04), true},
      {"FLUX.2-klein-4B, H100", "flux.2-klein", "h100-nvlink", 4, Runtime::compiled, one(0.4)},
      {"Z-Image-Turbo, H100", "z-image", "h100-nvlink", 9, Runtime::compiled, one(0.906)},
      {"Qwen-Image, H100", "qwen-image", "h100-nvlink", 50, Runtime::compiled, one(12.8)},
      {"Wan I2V 14B, a step, xDiT, H100", "wan-14b", "h100-nvlink", 1, Runtime::eager,
       eight(8.93, 2.7)},
      {"Wan I2V 14B, a step, SGLang, H100", "wan-14b", "h100-nvlink", 1, Runtime::compiled,
       eight(6.13, 1.19)},
      {"Wan I2V 14B, a step, LightX2V, H100", "wan-14b", "h100-nvlink", 1, Runtime::compiled,
       eight(5.18, 0.75)},
  };
}

}  // namespace troupe::published
