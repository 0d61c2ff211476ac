#pragma once
#include <cstdint>

namespace troupe::wire {

/// What a control-plane message is. Values are part of the protocol: never reuse one.
enum class Kind : std::uint16_t {
  // Session (session.h)
  hello = 1,
  welcome = 2,
  refuse = 3,
  heartbeat = 4,
  error = 5,
  goodbye = 6,
  ping = 7,
  pong = 8,
  // Blobs: 10-19 (transport/control/blob_channel)
  blob_request = 10,
  blob_chunk = 11,
  // Client and controller (client_messages.h)
  submit_job = 20,
  job_accepted = 21,
  job_progress = 22,
  job_finished = 23,
  cancel_job = 24,
  done = 25,
  list_jobs = 26,
  job_list = 27,
  get_status = 28,
  cluster_status = 29,
  stop_cluster = 30,
  wait_job = 31,
  // Controller and actor (actor_messages.h)
  load_stage = 40,
  stage_loaded = 41,
  connect_groups = 42,
  groups_connected = 43,
  begin_job = 44,
  run_tasks = 45,
  task_done = 46,
  task_failed = 47,
  end_job = 48,
  actor_job_stats = 49,
  abort_epoch = 50,
  unload = 51,
  shutdown = 52,
};

}  // namespace troupe::wire
