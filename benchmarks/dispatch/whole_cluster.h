#pragma once
#include <cstdint>

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
  /// Seconds of the processor meanwhile: of the controller's threads but ZeroMQ's, of ZeroMQ's, and
  /// how long one of them could have run and had no core.
  double controller_seconds = 0;
  double controller_io_seconds = 0;
  double controller_starved_seconds = 0;
  double players_seconds = 0;        // of the processes that play, all their life
  int jobs_lost = 0;                 // that had an actor on a host that vanished
  double noticed_seconds = 0;        // from then until the last of them was told so
  std::uint64_t watchers_heard = 0;  // messages about jobs, all watchers together
  double placed_seconds = 0;         // until the last of them began again on other actors
  double longest_answer = 0;  // seconds of a request for the list of jobs while others were checked
};

struct ClusterPlay {
  DispatchShape shape;
  int hosts = 1;
  double task_seconds = 0.005;
  int steps = 40;    // of a job
  int lose = 0;      // so many hosts vanish at once, a second after the last job began
  int watchers = 0;  // clients that follow the jobs (played_watchers.h)
  int checks = 0;    // of jobs with --parallel auto, before the others
};

/// The real controller with sockets, and processes that play a host of eight actors each
/// (played_host.h). The jobs are submitted one after another, thirty-two ahead of their answers.
/// Throws std::runtime_error when one fails.
ClusterFigures dispatch_cluster(const ClusterPlay& play);

}  // namespace troupe::bench
