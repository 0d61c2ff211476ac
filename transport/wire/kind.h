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
  notice = 9,
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
  // Actors of users: 60-74 (user_messages.h, call_messages.h)
  spawn_actor = 60,
  actor_address = 61,
  find_actor = 62,
  kill_actor = 63,
  list_actors = 64,
  actor_list = 65,
  list_classes = 66,
  class_list = 67,
  watch_actor = 68,
  actor_died = 69,
  create_actor = 70,
  actor_created = 71,
  actor_calls = 72,
  call_results = 73,
  release_values = 74,
  // Controller and node agents, for users' actors: 75-79 (plugin_messages.h)
  check_plugins = 75,
  plugins_checked = 76,
  // Seeing inside: 80-99 (inspect_messages.h, tensor_messages.h)
  get_mailbox = 80,
  mailbox_report = 81,
  get_tensors = 82,
  tensor_report = 83,
  get_slice = 84,
  tensor_slice = 85,
  get_latents = 86,
  job_latents = 87,
  get_latent_rows = 88,
  latent_rows = 89,
  render_latents = 90,
  rendered = 91,
  control_job = 92,
  inject_fault = 93,
  get_document = 94,
  document = 95,
  get_logs = 96,
  log_lines = 97,
  read_clock = 98,
  clock_reading = 99,
  // Controller and node agents of other hosts: 100-109 (host_messages.h)
  start_process = 100,
  process_started = 101,
  signal_process = 102,
  process_wrote = 103,
  process_ended = 104,
  drain_places = 105,
  carried = 106,  // carried.h
};

}  // namespace troupe::wire
