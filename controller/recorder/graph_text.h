#pragma once
#include <string>

#include "controller/recorder/recorder.h"

namespace troupe::recorder {

/// Returns the job's task graph in its newest epoch as one JSON document: {job, name, paused,
/// not_finite, kept_steps, epoch, attempts, world, steps, actors: [by rank], tasks: [{id, name,
/// kind, stage, replica, step, patch, part, state, actors, at, after, seconds}]}. `name`: "job 3",
/// or "batch 9 (jobs 3, 5)", under whose number the tasks run. `state`: waiting (not issued),
/// issued (lies at the actors `at`, or runs there), done. `after`: tasks that must be issued before
/// it. `not_finite`: what the job is paused for, or null. `kept_steps`: those that a loss would not
/// cost, since the job would go on behind them.
std::string graph_text(const JobNotes& job, bool paused = false, const std::string& met = "",
                       int kept_steps = 0);

}  // namespace troupe::recorder
