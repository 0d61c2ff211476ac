#include "controller/plan/pipeline_clock.h"

#include <algorithm>

namespace troupe::plan {
namespace {

/// Steps that are played; a pipeline of so many has settled into its pace, which the last of them
/// show.
constexpr int kPlayed = 64;
constexpr int kShown = 16;

}  // namespace

PipelineClock::PipelineClock(int stages, int patches)
    : stage_free_(stages, 0), edge_free_(stages, 0), back_(patches, 0) {}

double PipelineClock::run(const MicroTimes& times, double ready) {
  const std::size_t stages = stage_free_.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    ready = std::max(ready, stage_free_[stage]) + times.compute[stage];
    stage_free_[stage] = ready;
    if (stages == 1) continue;
    if (stage + 1 == stages) end_ = std::max(end_, ready);
    const double carried = stage + 1 == stages ? times.feedback : times.edge;
    ready = std::max(ready, edge_free_[stage]) + carried;
    edge_free_[stage] = ready;
  }
  if (stages == 1) end_ = std::max(end_, ready);
  return ready;
}

void PipelineClock::whole_step(const MicroTimes& times) {
  const double ready = *std::max_element(back_.begin(), back_.end());
  std::fill(back_.begin(), back_.end(), run(times, ready));
}

void PipelineClock::patch_step(const std::vector<MicroTimes>& patches) {
  for (std::size_t patch = 0; patch < patches.size(); ++patch)
    back_[patch] = run(patches[patch], back_[patch]);
}

void PipelineClock::patch_steps(const std::vector<MicroTimes>& patches, int count) {
  const int played = std::min(count, kPlayed);
  double before = end_;
  for (int step = 0; step < played; ++step) {
    if (step == kPlayed - kShown) before = end_;
    patch_step(patches);
  }
  if (count > played) shift((count - played) * (end_ - before) / kShown);
}

void PipelineClock::shift(double seconds) {
  for (auto* times : {&stage_free_, &edge_free_, &back_}) {
    for (double& time : *times)
      time += seconds;
  }
  end_ += seconds;
}

}  // namespace troupe::plan
