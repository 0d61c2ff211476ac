#pragma once
#include <string>

#include "controller/recorder/recorder.h"

namespace troupe::recorder {

/// Makes one JSON document of what had happened when a job failed: the failure, the job's phases,
/// its epochs, the tasks that lay at actors unfinished, and the last events of the cluster. Times
/// are seconds before the failure, so at most 0. `run`: number under which the job's tasks ran, the
/// job's own or its batch's; for a batch that failed as a whole both are the batch's number.
std::string flight_record(const Recorder& recorder, JobId job, JobId run,
                          const std::string& failure, Nanoseconds now);

/// Returns the part of such a record that a user may see who may not know of other users' jobs: of
/// its events those of the job and of the run that it was part of. No record, nothing.
std::string own_part(const std::string& record, JobId job, JobId run);

}  // namespace troupe::recorder
