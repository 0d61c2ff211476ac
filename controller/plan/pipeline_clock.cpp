#include "controller/plan/pipeline_clock.h"

#include <algorithm>

namespace troupe::plan {
namespace {

/// Number of steps that are played; a pipeline of so many has settled into its pace, which the last
/// of them show. Of many patches fewer steps are enough.
constexpr int kPlayed = 64;
constexpr int kPlayedAtLeast = 4;
constexpr int kPatchesPlayed = 2048;

}  // namespace

PipelineClock::PipelineClock(int stages, int patches)
    : stage_free_(stages, 0), edge_free_(stages, 0), back_(patches, 0) {}

double PipelineClock::run(const MicroTimes& times, double ready, bool returns) {
  const std::size_t stages = stage_free_.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    ready = std::max(ready, stage_free_[stage]) + times.compute[stage];
    stage_free_[stage] = ready;
    if (stages == 1) continue;
    if (stage + 1 == stages) end_ = std::max(end_, ready);
    if (stage + 1 == stages && !returns) break;
    const double carried = stage + 1 == stages ? times.feedback : times.edge;
    ready = std::max(ready, edge_free_[stage]) + carried;
    edge_free_[stage] = ready;
  }
  if (stages == 1) end_ = std::max(end_, ready);
  return ready;
}

void PipelineClock::whole_steps(const std::vector<MicroTimes>& parts, int count) {
  if (count == 0) return;
  const double ready = *std::max_element(back_.begin(), back_.end());
  double back = ready;
  for (std::size_t part = 0; part < parts.size(); ++part)
    back = run(parts[part], ready, part + 1 == parts.size());
  std::fill(back_.begin(), back_.end(), back);
  // All is at rest between two of them, so that each takes as long as the first.
  shift((count - 1) * (back - ready));
}

void PipelineClock::patch_step(const std::vector<MicroTimes>& patches) {
  // Stage by stage: patches wait for each other there, which is shorter than a patch's way.
  const std::size_t stages = stage_free_.size();
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const auto carried = stage + 1 == stages ? &MicroTimes::feedback : &MicroTimes::edge;
    double stage_free = stage_free_[stage], edge_free = edge_free_[stage];
    for (std::size_t patch = 0; patch < patches.size(); ++patch) {
      const auto& times = patches[patch];
      const double ready = back_[patch];
      stage_free = std::max(ready, stage_free) + times.compute[stage];
      edge_free = std::max(stage_free, edge_free) + times.*carried;
      back_[patch] = stages == 1 ? stage_free : edge_free;
    }
    stage_free_[stage] = stage_free, edge_free_[stage] = edge_free;
  }
  end_ = std::max(end_, stage_free_.back());
}

void PipelineClock::patch_steps(const std::vector<MicroTimes>& patches, int count) {
  const int fair = kPatchesPlayed / static_cast<int>(patches.size());
  const int played = std::min(count, std::clamp(fair, kPlayedAtLeast, kPlayed));
  const int shown = std::max(1, played / 4);
  double before = end_;
  for (int step = 0; step < played; ++step) {
    if (step == played - shown) before = end_;
    patch_step(patches);
  }
  if (count > played) shift((count - played) * (end_ - before) / shown);
}

void PipelineClock::shift(double seconds) {
  for (auto* times : {&stage_free_, &edge_free_, &back_}) {
    for (double& time : *times)
      time += seconds;
  }
  end_ += seconds;
}

}  // namespace troupe::plan
