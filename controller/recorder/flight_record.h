#pragma once
#include <string>

#include "controller/recorder/recorder.h"

namespace troupe::recorder {

/// What had happened when a job failed, as one JSON document: the failure, the job's phases and
/// epochs, the tasks that lay at actors unfinished, and the last events of the cluster. Times are
/// seconds before the failure, so at most 0.
std::string flight_record(const Recorder& recorder, JobId job, const std::string& failure,
                          Nanoseconds now);

}  // namespace troupe::recorder
