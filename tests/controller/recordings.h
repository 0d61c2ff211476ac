#pragma once
#include <string>
#include <vector>

#include "controller/recorder/recorder.h"

namespace troupe::recorder {

inline constexpr Nanoseconds kMs = 1'000'000;

/// Text, then `steps` steps of two patches through two stages on ranks 0 and 1, then the decoding.
inline schedule::TaskGraph two_stages(int steps) {
  schedule::TaskGraph graph;
  graph.world = 2;
  graph.steps = steps;
  graph.tasks.push_back({.kind = wire::TaskKind::encode_text, .ranks = {0, 1}});
  for (int step = 0; step < steps; ++step) {
    for (int patch = 0; patch < 2; ++patch) {
      for (int stage = 0; stage < 2; ++stage) {
        schedule::Task task{.step = step, .stage = stage, .patch = patch, .ranks = {stage}};
        task.predecessors = {static_cast<std::uint32_t>(graph.tasks.size() - 1)};
        const bool feeds_back = stage == 1 && step + 1 < steps;
        if (stage == 0) task.receivers = {1};
        if (feeds_back) task.receivers = {0};
        task.consumer_step = stage == 0 ? step : step + 1;
        graph.tasks.push_back(task);
      }
    }
  }
  graph.tasks.push_back({.kind = wire::TaskKind::decode, .step = steps, .stage = 1, .ranks = {1}});
  return graph;
}

inline wire::TaskDone done(std::uint64_t job, std::uint32_t task, Nanoseconds begin,
                           Nanoseconds end, std::vector<wire::ClockSpan> waits = {}) {
  return {.epoch = 7,
          .job = job,
          .task = task,
          .blobs = {},
          .warnings = {},
          .ran = {begin, end},
          .waits = std::move(waits)};
}

}  // namespace troupe::recorder
