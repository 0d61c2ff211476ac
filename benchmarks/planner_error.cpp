// Predictions of the planner's cost model beside published latencies, and how far they are off.
// Twice: of xDiT as its code is, its speed fitted to each table's one-device rows and to nothing
// else; and what `troupe plan --simulate` itself prints, nothing fitted. docs/planner.md explains.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "benchmarks/command_line.h"
#include "benchmarks/published_latencies.h"
#include "benchmarks/simulated.h"
#include "controller/plan/cost_model.h"
#include "controller/plan/patches.h"

namespace {

using namespace troupe;

/// xDiT as its code is: two copies of all K,V in a patch's attention, ceiling division of the
/// blocks, a device synchronisation before and after each end of a message, Python between
/// operations.
plan::Engine xdit(const std::string& model) {
  return {.kv_copies = 2,
          .text_with_every_patch = model == "flux",
          .parts_of_batch = false,
          .ceiling_stages = true,
          .message_overhead = 100e-6,
          .launch_factor = 2};
}

plan::ModelShape shape_of(const std::string& name) {
  plan::ModelShape shape;
  if (name == "pixart") {
    shape = {.layers = 28,
             .width = 1152,
             .heads = 16,
             .joint = false,
             .text_tokens = 120,
             .operations_per_block = 35};
    shape.weights_per_block = 14 * shape.width * shape.width;
  } else if (name == "sd3") {
    shape = {.layers = 24,
             .width = 1536,
             .heads = 24,
             .joint = true,
             .text_tokens = 333,
             .operations_per_block = 60};
    shape.weights_per_block = 12 * shape.width * shape.width;
    shape.sums_per_block = 2;
  } else if (name == "flux") {  // 19 blocks with two streams and 38 with one: 12 squares a token
    shape = {.layers = 57,
             .width = 3072,
             .heads = 24,
             .joint = true,
             .text_tokens = 512,
             .operations_per_block = 50};
    shape.weights_per_block = 12 * shape.width * shape.width;
    shape.sums_per_block = 2;
  } else if (name == "hunyuan") {  // from the 21st block on with a skip of two squares
    shape = {.layers = 40,
             .width = 1408,
             .heads = 16,
             .joint = false,
             .text_tokens = 333,
             .operations_per_block = 45};
    shape.weights_per_block = 15.7 * shape.width * shape.width;
    for (int block = 0; block < shape.layers; ++block)
      shape.takes_up.push_back(block > shape.layers / 2 ? shape.layers - 1 - block : -1);
  } else {
    throw std::invalid_argument("[planner_error] no shape of " + name);
  }
  return shape;
}

plan::JobShape job_of(const published::Table& table, int pixels, Method method, int patches,
                      int warmup) {
  plan::JobShape job;
  const int rows = pixels / 16;
  job.method = method;
  job.dtype = ComputeType::float16;
  job.patches = plan::split_rows(rows, patches);
  job.columns = rows;
  job.latent_channels = table.model == "pixart" || table.model == "hunyuan" ? 4 : 16;
  job.guidance = table.model != "flux";
  job.steps = table.steps;
  job.synchronous_steps = method == Method::exact ? table.steps : std::min(warmup, table.steps);
  job.decodes = false;
  return job;
}

struct Prediction {
  double seconds = std::numeric_limits<double>::infinity();
  std::string mix;
};

class Simulation {
 public:
  explicit Simulation(const published::Table& table)
      : table_(table), model_(shape_of(table.model)), machine_(plan::machine_of(table.machine)) {
    if (table.compiled) machine_.device.launch /= 10;  // few kernels, no Python
    machine_ = plan::calibrated(machine_, fit(), 1);
  }

  Prediction predict(int pixels, const published::Run& run) const {
    Prediction best;
    const int n = run.devices;
    if (run.how == "one") consider(best, pixels, Method::exact, 1, 1, {});
    if (run.how == "tp") consider(best, pixels, Method::exact, 1, 1, {.tp = n});
    if (run.how == "ulysses") consider(best, pixels, Method::exact, 1, 1, {.ulysses = n});
    if (run.how == "ring") consider(best, pixels, Method::exact, 1, 1, {.ring = n});
    if (run.how == "usp")
      consider(best, pixels, Method::exact, 1, 1, {.ring = run.ring, .ulysses = run.ulysses});
    if (run.how == "distrifusion")
      consider(best, pixels, Method::distrifusion, n, run.warmup, {.ring = n});
    if (run.how == "pipefusion")
      consider_patches(best, pixels, run.warmup, {.cfg = run.cfg, .pp = n / run.cfg});
    if (run.how == "best") consider_all(best, pixels, n);
    return best;
  }

 private:
  void consider(Prediction& best, int pixels, Method method, int patches, int warmup,
                const mesh::Degrees& degrees) const {
    const auto job = job_of(table_, pixels, method, patches, warmup);
    auto machine = machine_;
    machine.devices = degrees.world();
    const double seconds =
        plan::estimate_cost(model_, job, degrees, 1, machine, xdit(table_.model)).total();
    if (seconds >= best.seconds) return;
    best.seconds = seconds;
    best.mix.clear();
    const auto name = [&best](const char* axis, int degree) {
      if (degree > 1) best.mix.append(axis).append(std::to_string(degree)).append(" ");
    };
    name("cfg", degrees.cfg), name("pp", degrees.pp), name("u", degrees.ulysses);
    name("r", degrees.ring), name("tp", degrees.tp), name("M", patches);
  }

  void consider_patches(Prediction& best, int pixels, int warmup,
                        const mesh::Degrees& degrees) const {
    if (degrees.pp == 1) return consider(best, pixels, Method::exact, 1, 1, degrees);
    for (const int patches : {2, 4, 8, 16, 32})
      consider(best, pixels, Method::pipefusion, patches, warmup, degrees);
  }

  void consider_all(Prediction& best, int pixels, int devices) const {
    for (int cfg = 1; cfg <= (table_.model == "flux" ? 1 : 2); ++cfg) {
      for (int pp = 1; cfg * pp <= devices; ++pp) {
        for (int ulysses = 1; cfg * pp * ulysses <= devices; ++ulysses) {
          if (devices % (cfg * pp * ulysses) != 0 || model_.heads % ulysses != 0) continue;
          const mesh::Degrees degrees{
              .cfg = cfg, .pp = pp, .ring = devices / (cfg * pp * ulysses), .ulysses = ulysses};
          if (pp == 1) consider(best, pixels, Method::exact, 1, 1, degrees);
          if (pp > 1) consider_patches(best, pixels, 1, degrees);
        }
      }
    }
  }

  /// Predicted ÷ published seconds of the one-device rows: their geometric mean.
  double fit() const {
    double logarithms = 0;
    int rows = 0;
    for (const auto& row : table_.rows) {
      if (row.run.how != "one") continue;
      logarithms += std::log(predict(row.pixels, row.run).seconds / row.seconds);
      ++rows;
    }
    if (rows == 0) throw std::invalid_argument("[planner_error] no one-device row: " + table_.name);
    return std::exp(logarithms / rows);
  }

  const published::Table& table_;
  const plan::ModelShape model_;
  plan::Machine machine_;
};

struct Errors {
  std::vector<double> of_rows;  // predicted ÷ published − 1

  double median() const {
    auto sizes = of_rows;
    for (double& size : sizes)
      size = std::abs(size);
    std::sort(sizes.begin(), sizes.end());
    const auto middle = sizes.size() / 2;
    return sizes.size() % 2 == 1 ? sizes[middle] : (sizes[middle - 1] + sizes[middle]) / 2;
  }
  /// Geometric, of predicted ÷ published.
  double mean() const {
    double logarithms = 0;
    for (const double error : of_rows)
      logarithms += std::log1p(error);
    return std::expm1(logarithms / static_cast<double>(of_rows.size()));
  }
  double worst() const {
    return *std::max_element(of_rows.begin(), of_rows.end(),
                             [](double a, double b) { return std::abs(a) < std::abs(b); });
  }
};

/// Of one table, of one size or of all.
struct Both {
  Errors fitted;    // one-device rows left out
  Errors unfitted;  // what `plan --simulate` prints; all rows

  void add(const Both& other) {
    for (const auto& [own, more] :
         {std::pair{&fitted, &other.fitted}, std::pair{&unfitted, &other.unfitted}})
      own->of_rows.insert(own->of_rows.end(), more->of_rows.begin(), more->of_rows.end());
  }
};

Both print(const published::Table& table, std::map<int, Both>& by_pixels) {
  const Simulation simulation(table);
  const published::Simulated own(table);
  std::printf("\n%s (%d steps)\n", table.name.c_str(), table.steps);
  std::printf("  %-6s %-8s %-14s %-18s %10s %10s %8s %14s %8s\n", "pixels", "devices", "method",
              "simulated as", "predicted", "published", "error", "plan --simulate", "error");
  Both errors;
  for (const auto& row : table.rows) {
    const auto predicted = simulation.predict(row.pixels, row.run);
    const double error = predicted.seconds / row.seconds - 1;
    const double unfitted = own.seconds(row.pixels, row.run);
    const double own_error = unfitted / row.seconds - 1;
    const bool fitted = row.run.how == "one";
    std::printf("  %-6d %-8d %-14s %-18s %10.2f %10.2f %+7.0f%% %14.2f %+7.0f%%%s\n", row.pixels,
                row.run.devices, row.run.how.c_str(), predicted.mix.c_str(), predicted.seconds,
                row.seconds, 100 * error, unfitted, 100 * own_error, fitted ? " fitted" : "");
    auto& of_size = by_pixels[row.pixels];
    for (auto* where : {&errors, &of_size}) {
      where->unfitted.of_rows.push_back(own_error);
      if (!fitted) where->fitted.of_rows.push_back(error);
    }
  }
  return errors;
}

int run() {
  Both all;
  std::vector<std::pair<std::string, Both>> summary;
  std::map<int, Both> by_pixels;
  auto tables = published::tables();
  for (auto& table : published::compiled_tables())
    tables.push_back(std::move(table));
  for (const auto& table : tables) {
    auto errors = print(table, by_pixels);
    all.add(errors);
    summary.emplace_back(table.name, std::move(errors));
  }
  for (auto& [pixels, errors] : by_pixels)
    summary.emplace_back("all of " + std::to_string(pixels) + " pixels a side", std::move(errors));
  summary.emplace_back("all", std::move(all));
  std::printf("\n%-46s %6s %8s %8s   %6s %8s %8s %8s\n", "table", "rows", "median", "worst", "rows",
              "median", "worst", "mean");
  for (const auto& [name, errors] : summary) {
    std::printf("%-46s %6zu %7.0f%% %+7.0f%%   %6zu %7.0f%% %+7.0f%% %+7.0f%%\n", name.c_str(),
                errors.fitted.of_rows.size(), 100 * errors.fitted.median(),
                100 * errors.fitted.worst(), errors.unfitted.of_rows.size(),
                100 * errors.unfitted.median(), 100 * errors.unfitted.worst(),
                100 * errors.unfitted.mean());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The planner's predictions beside published latencies", "planner_error"};
  return troupe::bench::run_program(app, argc, argv, run);
}
