#include "controller/plan/staleness.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/format.h"
#include "base/text.h"

namespace troupe::plan {
namespace {

/// PSNR in decibels at which a result is off by 3 % of the range, root mean square.
constexpr double kFarFromExact = 30;
/// Ratio of the exact method's time below which old values are not worth it.
constexpr double kWorthOldValues = 1.1;

/// PSNR by number of steps, of benchmarks/results/quality.md, "Where stale K,V hurt": 256 × 256, 4
/// patches, one warm-up step.
struct Point {
  double steps;
  double pipefusion_stale, pipefusion_predicted, distrifusion_stale, distrifusion_predicted;
};
constexpr Point kMeasured[] = {
    {4, 21.0, 20.5, 19.2, 19.0},  {6, 22.2, 21.3, 22.8, 23.0},  {10, 30.0, 30.3, 28.8, 27.8},
    {20, 40.5, 50.0, 38.9, 42.6}, {50, 47.4, 59.2, 45.1, 55.1},
};

double decibels(const Point& point, const wire::ImageRequest& request) {
  const bool predicts = request.kv == KvUse::predict;
  if (request.method == Method::pipefusion)
    return predicts ? point.pipefusion_predicted : point.pipefusion_stale;
  return predicts ? point.distrifusion_predicted : point.distrifusion_stale;
}

}  // namespace

std::optional<double> measured_psnr(const Plan& plan) {
  const auto& request = plan.request;
  if (plan.patches.size() < 2 || plan.synchronous_steps >= request.steps ||
      request.exchange != PatchExchange::stale)
    return {};
  const double steps =
      std::clamp<double>(plan.sampler_steps, kMeasured[0].steps, std::end(kMeasured)[-1].steps);
  const auto* above = std::find_if(std::begin(kMeasured) + 1, std::end(kMeasured) - 1,
                                   [&](const Point& point) { return steps <= point.steps; });
  const auto* below = above - 1;
  const double part = std::log(steps / below->steps) / std::log(above->steps / below->steps);
  return std::lerp(decibels(*below, request), decibels(*above, request), part);
}

void warn_of_staleness(Plan& plan) {
  const auto found = measured_psnr(plan);
  if (!found || *found >= kFarFromExact) return;
  plan.warnings.push_back(fmt::format(
      "{} by {} patches in {}: so much changes from step to step that stale K,V may show (about "
      "{:.0f} dB from exact with the demo checkpoint, see docs/methods.md); --method exact uses "
      "none",
      to_string(plan.request.method), plan.patches.size(), counted(plan.sampler_steps, "step"),
      *found));
}

std::string exact_instead(const spec::ModelSpec& model, const wire::ImageRequest& request,
                          const Plan& plan, double seconds, int actors, const Machine& machine,
                          const Limits& limits) {
  const auto found = measured_psnr(plan);
  if (!found) return "";
  auto exact = request;
  const wire::ImageRequest usual;
  exact.method = Method::exact;
  exact.num_pipeline_patch = usual.num_pipeline_patch;
  exact.kv = usual.kv;
  exact.group_norm = usual.group_norm;
  exact.refill_steps.clear();
  Limits one = limits;
  one.candidates = 1;
  const auto candidates = choose_degrees(model, exact, actors, machine, one);
  const auto* best = best_of(candidates);
  if (best == nullptr) return "";
  const double longer = best->cost.total() / seconds;
  if (longer >= kWorthOldValues && *found >= kFarFromExact) return "";
  const auto gain = longer > 1 ? fmt::format("stale K,V save {:.0f} %", 100 * (1 - 1 / longer))
                               : std::string("stale K,V save nothing");
  return fmt::format("exact on {} is predicted to take {:.3g} s, {} here {:.3g} s: {}",
                     to_text(best->parallelism), best->cost.total(), to_string(plan.request.method),
                     seconds, gain);
}

}  // namespace troupe::plan
