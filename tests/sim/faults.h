#pragma once

namespace troupe::sim {

/// Faults that may occur in a run; probabilities are of a single event.
struct Faults {
  double kills_per_job = 0;       // SIGKILL of a random process
  double mass_kills_per_job = 0;  // of four at once
  double slow_loads = 0;          // a checkpoint that takes the better part of a minute
  double late_exits = 0;          // an end that is told seconds after its sockets have closed
  double hangs_per_job = 0;       // a process stops for ever: no heartbeats, no work
  double stalls_per_job = 0;      // heartbeats go on, the work loop does not
  double naps_per_job = 0;        // a process stops for seconds, then goes on where it was
  double slow_per_job = 0;  // a work loop stands still for seconds, beyond deadlines of answers
  double cuts_per_job = 0;  // a control link breaks, both ways or one, with what is under way

  // Below the sequence numbers of a control link (transport/control/peer.h), of each
  // frame:
  double drops_per_message = 0;
  double doubles_per_message = 0;   // the second comes at once, or when its link is long gone
  double reorders_per_message = 0;  // others overtake it
  double late_per_message = 0;      // its direction of the link stands still for seconds
  // Behind them:
  double late_blobs = 0;          // they have a link of their own: seconds, rarely beyond deadlines
  double echoes_per_message = 0;  // a handler is called a second time, at once or later
  bool ghosts = false;            // what a dead process said, and that it died, comes once more

  double failed_spawns = 0;     // fork fails
  double failed_starts = 0;     // a process ends before its hello
  double failed_loads = 0;      // a checkpoint that cannot be read
  double failed_tasks = 0;      // an exception in a task
  double not_finite_tasks = 0;  // a NaN in a task of a job that is to stop there
  double watches_per_job = 0;   // it is: is looked at for a while then, and let go
  double cancels_per_job = 0;
  double retries_per_job = 0;     // its client asks again, not having heard the answer
  double restarts_per_job = 0;    // of the controller, which keeps a journal then
  bool empty_places = false;      // a place whose process has ended gets no other one
  bool elastic = false;           // all jobs are
  int hosts = 1;                  // that the places are on
  double drains_per_job = 0;      // of a random place, with or without --now
  double lost_hosts_per_job = 0;  // with their agents
  int hosts_at_once = 1;          // that are lost together, neighbours: a rack
  bool wide = false;              // every job takes eight actors
  bool tight_memory = false;      // actors hold one or two deployments at a time
  bool batches = false;           // jobs of few shapes that may compute as one, with latents
  bool two_kinds = false;         // every third place is a GPU
  double rejoin_deadline = 0;     // seconds that jobs wait for actors
  bool one_mesh = false;          // jobs of one shape that share one pipeline
};

}  // namespace troupe::sim
