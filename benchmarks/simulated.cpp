#include "benchmarks/simulated.h"

#include <algorithm>
#include <limits>
#include <map>

#include "benchmarks/published_models.h"
#include "controller/plan/planner.h"

namespace troupe::published {
namespace {

/// Whether it would fit is another table.
constexpr std::uint64_t kAnyMemory = std::uint64_t{1} << 50;
constexpr int kPatches[] = {2, 4, 8, 16, 32};

wire::ImageRequest request_of(const Table& table, int pixels, Method method, int patches,
                              int warmup) {
  wire::ImageRequest request;
  request.prompts = {""};
  request.height = request.width = pixels;
  request.steps = table.steps;
  request.dtype = ComputeType::float16;
  request.guidance_scale = guidance_of(table.model);
  request.method = method;
  request.num_pipeline_patch = patches;
  request.warmup_steps = warmup;
  request.max_sequence_length = 0;
  return request;
}

/// Each read once.
const spec::ModelSpec& spec_of(const std::string& name) {
  static std::map<std::string, spec::ModelSpec> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, model_of(name)).first->second;
}

}  // namespace

Simulated::Simulated(const Table& table) : table_(table), model_(spec_of(table.model)) {}

double Simulated::seconds(int pixels, const Run& run) const {
  auto machine = plan::machine_of(table_.machine);
  machine.devices = run.devices;
  const auto of = [&](Method method, int patches, const wire::Parallelism& mix) {
    const auto plan =
        plan::make_plan(model_, request_of(table_, pixels, method, patches, run.warmup), mix);
    return plan::judge(mix, plan, model_, machine, {.memory = kAnyMemory}).cost.denoise();
  };
  const int n = run.devices;
  if (run.how == "one") return of(Method::exact, 1, {});
  if (run.how == "tp") return of(Method::exact, 1, {.tp = n});
  if (run.how == "ulysses") return of(Method::exact, 1, {.ulysses = n});
  if (run.how == "ring") return of(Method::exact, 1, {.ring = n});
  if (run.how == "usp") return of(Method::exact, 1, {.ulysses = run.ulysses, .ring = run.ring});
  if (run.how == "distrifusion") return of(Method::distrifusion, n, {.ring = n});
  double best = std::numeric_limits<double>::infinity();
  if (run.how == "pipefusion") {
    if (n == run.cfg) return of(Method::exact, 1, {.cfg = run.cfg});
    for (const int patches : kPatches)
      best = std::min(best, of(Method::pipefusion, patches, {.cfg = run.cfg, .pp = n / run.cfg}));
    return best;
  }
  const auto picked = [&](Method method, int patches) {
    const auto request = request_of(table_, pixels, method, patches, run.warmup);
    const auto candidates =
        plan::choose_degrees(model_, request, n, machine, {.memory = kAnyMemory, .candidates = 1});
    const auto* pick = plan::best_of(candidates);
    if (pick) best = std::min(best, pick->cost.denoise());
  };
  picked(Method::exact, 1);
  for (const int patches : kPatches)
    picked(Method::pipefusion, patches);
  return best;
}

}  // namespace troupe::published
