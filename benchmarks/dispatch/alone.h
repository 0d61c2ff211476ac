#pragma once
#include <cstddef>
#include <vector>

#include "transport/wire/job.h"

namespace troupe::bench {

/// Number of jobs of the same degrees, each on actors of its own.
struct DispatchShape {
  int jobs = 1;
  wire::Parallelism degrees;
};

int actors_of(const wire::Parallelism& degrees);
/// Returns the request of all jobs: a picture of 64 × 64 tokens in 20 steps, in 16 patches.
wire::ImageRequest request_of(const wire::Parallelism& degrees);

struct DispatchFigures {
  int jobs = 0;
  int actors = 0;
  std::size_t ends = 0;  // of tasks, each member's counted
  double seconds = 0;    // of the processor, in the dispatcher's calls
  double worst = 0;      // of the calls that follow one end, seconds by the clock
  double ends_per_second() const { return static_cast<double>(ends) / seconds; }
};

/// The dispatcher by itself: jobs of 20 steps and 16 patches on actors that take `task_seconds` of
/// a virtual clock for a micro-step. A task begins when it stands at the head of all its members'
/// queues and what it waits for is done. After each member's end it is asked what is next, and that
/// is made into messages, as the job runner does. Played again until there were `least_ends` of
/// them, and the quickest counts.
DispatchFigures dispatch_alone(const DispatchShape& shape, double task_seconds,
                               std::size_t least_ends);

}  // namespace troupe::bench
