#pragma once
#include <optional>
#include <string>
#include <vector>

#include "controller/journal/store.h"

namespace troupe::journal {

/// Jobs of a journal that have not ended, by what is to be done with them.
struct Revival {
  std::vector<jobs::JobId> to_plan;    // held until they have a plan: see take_up
  std::vector<jobs::JobId> cancelled;  // somebody had asked for that
  double clock_back = 0;  // seconds that the calendar's clock is behind the newest entry
};

/// Returns the cause: "its controller (pid 7) ended without a word", or that it was stopped.
std::string cause_of(const PreviousRun& past);

/// Puts all jobs of a journal into an empty table, under their numbers. Those that have ended have
/// their results; the others wait, held.
Revival revive(const std::vector<Record>& records, const PreviousRun& past,
               const Calendar& calendar, const KeepBytes& keep, jobs::JobTable& table);

/// Gives a held job its plan; it goes on from its boundary, as after any loss. Returns why it
/// cannot, where it has been begun more than `max_restarts` times without getting a step further.
std::optional<wire::Failure> take_up(jobs::JobEntry& job, plan::Plan plan, const std::string& cause,
                                     double now, int max_restarts);

}  // namespace troupe::journal
