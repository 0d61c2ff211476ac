#pragma once
#include "benchmarks/dispatch/alone.h"

namespace troupe::bench {

struct ClusterFigures {
  int jobs = 0;
  int actors = 0;              // that had work
  double join_seconds = 0;     // until all hosts' actors were ready
  double seconds = 0;          // from the first job's submission to the last one's end
  double ends = 0;             // of tasks, each member's counted
  double controller_wait = 0;  // part of the time between an actor's first and last task in which
                               // it had none
  double controller_processor = 0;  // cores that the controller's process took meanwhile
};

/// The real controller with sockets, and `hosts` processes that play a host of eight actors each
/// (played_host.h). The jobs are submitted at once. Throws std::runtime_error when one fails.
ClusterFigures dispatch_cluster(const DispatchShape& shape, int hosts, double task_seconds,
                                int steps);

}  // namespace troupe::bench
