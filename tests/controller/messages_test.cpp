#include "controller/app/messages.h"

#include <map>
#include <set>
#include <vector>

#include "tests/support/doctest.h"

namespace troupe::cluster {
namespace {

using control::ClientRole;
using enum wire::Kind;

const std::vector<wire::Kind> kKinds{
#define KIND(name, number) wire::Kind::name,
#include "transport/wire/kinds.def"
#undef KIND
};

// What no room is handed: the link and the blob channel take it themselves, or it is an answer, or
// it goes the other way, or between others.
const std::set<wire::Kind> kOthers{
    hello,           welcome,          refuse,         heartbeat,
    error,           goodbye,          ping,           pong,
    notice,          blob_request,     blob_chunk,     mux_frames,
    job_accepted,    job_progress,     job_finished,   done,
    job_list,        cluster_status,   load_stage,     stage_loaded,
    connect_groups,  groups_connected, begin_job,      run_tasks,
    end_job,         actor_job_stats,  abort_epoch,    unload,
    shutdown,        actor_address,    actor_list,     class_list,
    actor_died,      create_actor,     actor_created,  actor_calls,
    call_results,    release_values,   check_plugins,  plugins_checked,
    mailbox_report,  tensor_report,    tensor_slice,   job_latents,
    get_latent_rows, latent_rows,      render_latents, rendered,
    document,        log_lines,        read_clock,     clock_reading,
    start_process,   process_started,  signal_process,
};

const std::set<wire::Kind> kOfActors{task_done, task_failed, hold_changed};
const std::set<wire::Kind> kOfHosts{process_wrote, process_ended, drain_places, get_status};
const std::map<ClientRole, std::set<wire::Kind>> kOfClients{
    {ClientRole::own_jobs,
     {submit_job, wait_job, cancel_job, list_jobs, get_status, control_job, get_latents,
      get_document}},
    {ClientRole::all_jobs,
     {get_logs, spawn_actor, find_actor, kill_actor, watch_actor, list_actors, list_classes}},
    {ClientRole::operate,
     {get_mailbox, get_tensors, get_slice, inject_fault, drain_places, stop_cluster}}};

bool may(Sender sender, ClientRole role, wire::Kind kind) {
  if (sender == Sender::actor) return kOfActors.contains(kind);
  if (sender == Sender::host)
    return kOfHosts.contains(kind) && (role == ClientRole::operate || kind == get_status);
  for (const auto& [needed, kinds] : kOfClients)
    if (kinds.contains(kind)) return role >= needed;
  return false;
}

}  // namespace

TEST_CASE("each kind of message is in the controller's table once, or is none that it is sent") {
  std::multiset<wire::Kind> listed;
  for (const auto& message : messages())
    listed.insert(message.kind);
  for (const auto kind : kKinds) {
    CAPTURE(wire::to_string(kind));
    CHECK(listed.count(kind) + kOthers.count(kind) == 1);
  }
  CHECK(listed.size() + kOthers.size() == kKinds.size());
}

TEST_CASE("a sender or a role that the table does not list is refused, and so is any other kind") {
  for (std::uint16_t number = 0; number < 300; ++number) {
    const auto kind = static_cast<wire::Kind>(number);
    CAPTURE(wire::to_string(kind));
    for (const auto sender : {Sender::actor, Sender::host, Sender::client}) {
      for (const auto role : {ClientRole::own_jobs, ClientRole::all_jobs, ClientRole::operate}) {
        if (sender == Sender::actor && role != ClientRole::operate) continue;  // has the highest
        const auto why = refusal(sender, {"alice", role}, kind);
        CHECK(why.has_value() != may(sender, role, kind));
        if (why && why->code == wire::FailureCode::refused)
          CHECK(why->what.starts_with("the key \"alice\" has the role "));
        else if (why)
          CHECK(why->what.starts_with(wire::to_string(kind) + " is not for "));
      }
    }
  }
}

}  // namespace troupe::cluster
