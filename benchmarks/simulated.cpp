#include "benchmarks/simulated.h"

#include <algorithm>
#include <limits>
#include <map>

#include "benchmarks/published_models.h"
#include "controller/plan/planner.h"

namespace troupe::published {
namespace {

/// Memory of an actor that fits any plan: whether a row would fit is another table.
constexpr std::uint64_t kAnyMemory = std::uint64_t{1} << 50;
constexpr int kPatches[] = {2, 4, 8, 16, 32};

wire::ImageRequest request_of(const Table& table, int pixels, Method method, int patches,
                              int warmup) {
  wire::ImageRequest request;
  request.prompts = {""};
  request.height = request.width = pixels;
  if (table.model == "wan-14b") request.width = 832, request.num_frames = 81;
  request.steps = table.steps;
  request.dtype = ComputeType::float16;
  request.guidance_scale = guidance_of(table.model);
  request.method = method;
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  request.max_sequence_length = 0;
  return request;
}

/// Returns the model's spec; each spec is read once.
const spec::ModelSpec& spec_of(const std::string& name) {
  static std::map<std::string, spec::ModelSpec> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, model_of(name)).first->second;
}

}  // namespace

bool has_folder(const std::string& model) {
  for (const char* known : {"pixart", "sd3", "flux", "hunyuan", "sdxl", "wan-14b"})
    if (model == known) return true;
  return false;
}

Simulated::Simulated(const Table& table) : table_(table), model_(spec_of(table.model)) {}

double Simulated::seconds(int pixels, const Run& run) const {
  auto machine = plan::machine_of(table_.machine);
  machine.devices = run.devices;
  const auto seconds_of = [&](const plan::JobCost& cost) {
    return table_.around ? cost.total() : cost.denoise();
  };
  const auto of = [&](Method method, int patches, const wire::Parallelism& mix,
                      PatchExchange exchange = PatchExchange::stale) {
    auto request = request_of(table_, pixels, method, patches, run.warmup);
    request.exchange = exchange;
    const auto plan = plan::make_plan(model_, request, mix);
    return seconds_of(plan::judge(mix, plan, model_, machine, {.memory = kAnyMemory}).cost);
  };
  const int n = run.devices;
  if (run.how == "one") return of(Method::exact, 1, {});
  if (run.how == "tp") return of(Method::exact, 1, {.tp = n});
  if (run.how == "ulysses") return of(Method::exact, 1, {.ulysses = n});
  if (run.how == "ring") return of(Method::exact, 1, {.ring = n});
  if (run.how == "usp") return of(Method::exact, 1, {.ulysses = run.ulysses, .ring = run.ring});
  const int patched = n / run.cfg;
  if (run.how == "distrifusion")
    return of(Method::distrifusion, patched, {.cfg = run.cfg, .ring = patched});
  if (run.how == "silent") return of(Method::distrifusion, n, {.ring = n}, PatchExchange::none);
  if (run.how == "naive") return of(Method::distrifusion, n, {.ring = n}, PatchExchange::naive);
  if (run.how == "synchronous") return of(Method::distrifusion, n, {.ring = n}, PatchExchange::all);
  double best = std::numeric_limits<double>::infinity();
  if (run.how == "pipefusion") {
    if (n == run.cfg) return of(Method::exact, 1, {.cfg = run.cfg});
    const wire::Parallelism mix{.cfg = run.cfg,
                                .pp = patched / (run.ulysses * run.ring),
                                .ulysses = run.ulysses,
                                .ring = run.ring};
    for (const int patches : kPatches)
      best = std::min(best, of(Method::pipefusion, patches, mix));
    return best;
  }
  const auto picked = [&](Method method, int patches) {
    const auto request = request_of(table_, pixels, method, patches, run.warmup);
    const auto candidates =
        plan::choose_degrees(model_, request, n, machine, {.memory = kAnyMemory, .candidates = 1});
    const auto* pick = plan::best_of(candidates);
    if (pick) best = std::min(best, seconds_of(pick->cost));
  };
  picked(Method::exact, 1);
  for (const int patches : kPatches) {
    if (table_.steps >= 10) picked(Method::pipefusion, patches);
  }
  return best;
}

}  // namespace troupe::published
