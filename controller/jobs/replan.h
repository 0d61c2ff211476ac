#pragma once
#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {

/// The job's request on the degrees that suit at most so many actors best, with the steps that it
/// has to fill anew by now. Degrees alone differ from the plan that it has. Throws
/// std::invalid_argument where there are none. Pure.
plan::Plan plan_again(const JobEntry& job, const spec::ModelSpec& model, int actors,
                      const plan::Machine& machine, const plan::Limits& limits = {});

}  // namespace troupe::jobs
