#pragma once

#include <functional>
#include <string>

#include "actors/stage/job.h"

namespace troupe::actors {

/// Called before each step is computed, with whether that step takes the whole picture at once.
using OnRehearsedStep = std::function<void(bool whole)>;

/// Does once what a job will do, before any receive of the job is posted: on a device everything
/// that the job needs is then loaded, planned and allocated while nothing waits there for a peer
/// (docs/gpu.md). The rehearsal is another job of the same shape, with a text without words and
/// groups that exchange nothing; when this returns, that job is gone, and its memory belongs to the
/// allocator. If the device has no more memory, the allocator hands back what it keeps of other
/// jobs: at this time that does no harm. Throws what the job would: no memory, the end of its
/// epoch.
void rehearse(const wire::BeginJob& begin, const JobTools& tools,
              const OnRehearsedStep& on_step = {});

/// Returns the key of a job. Jobs of one key use the same things of a deployment: one rehearsal
/// serves all.
std::string rehearsal_key(const wire::BeginJob& begin, const spec::ModelSpec& spec);

}  // namespace troupe::actors
