#pragma once
#include <functional>
#include <string>

#include "actors/stage/job.h"

namespace troupe::actors {

/// Told of each step before it is computed, and whether that takes the whole picture at once.
using OnRehearsedStep = std::function<void(bool whole)>;

/// Does once what a job will do, before any receive of it is posted: on a device everything that it
/// needs is then loaded, planned and allocated while nothing waits there for a peer (docs/gpu.md).
/// It is another job of the same shape, with a text without words and groups that exchange nothing;
/// when this returns it is gone, and its memory is the allocator's. Where the device has no more,
/// the allocator hands back what it keeps of other jobs: now that does no harm. Throws what the job
/// would: no memory, the end of its epoch.
void rehearse(const wire::BeginJob& begin, const JobTools& tools,
              const OnRehearsedStep& on_step = {});

/// Jobs of one key use the same things of a deployment: one rehearsal serves all.
std::string rehearsal_key(const wire::BeginJob& begin, const spec::ModelSpec& spec);

}  // namespace troupe::actors
