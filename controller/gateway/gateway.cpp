#include "controller/gateway/gateway.h"

#include <exception>
#include <thread>

#include "controller/jobs/report.h"
#include "controller/plan/planner.h"

namespace troupe::gateway {
namespace {

constexpr control::Milliseconds kUploadDeadline{60'000};
/// A client gives up after 30 s (client/client.cpp), and must not find its job running then.
constexpr std::chrono::seconds kReadDeadline{25};
constexpr std::size_t kMaxReadings = 64;
constexpr std::size_t kKeptFailures = 10;

}  // namespace

Gateway::Gateway(ClusterFacts facts, Tools tools)
    : facts_(std::move(facts)),
      tools_(std::move(tools)),
      reader_(tools_.io, tools_.read_model, tools_.allowed_models) {}

void Gateway::on_message(control::PeerId peer, const wire::Header& header,
                         std::span<const std::byte> payload) {
  switch (header.kind) {
    case wire::Kind::submit_job:
      return submit(peer, header, wire::decode<wire::SubmitJob>(payload));
    case wire::Kind::wait_job:
      return watch(peer, header, wire::decode<wire::WaitJob>(payload).job);
    case wire::Kind::cancel_job:
      return cancel(peer, header, wire::decode<wire::CancelJob>(payload).job);
    case wire::Kind::list_jobs:
      tools_.server.reply(peer, header, list());
      return;
    case wire::Kind::get_status:
      tools_.server.reply(peer, header, status());
      return;
    case wire::Kind::stop_cluster:
      tools_.server.reply(peer, header, wire::Done{"the cluster is stopping"});
      tools_.stop();
      return;
    default:
      if (desk_ && desk_->on_message(peer, header, payload)) return;
      if (header.is_request()) {
        tools_.server.reply(
            peer, header,
            wire::Failure{wire::FailureCode::protocol,
                          "message kind " + std::to_string(static_cast<int>(header.kind)) +
                              " is not for a controller"});
      }
  }
}

void Gateway::submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission) {
  const auto& request = submission.job.request;
  if (request.init_latents_blob == 0) {
    read_model(peer, header, std::move(submission));
    return;
  }
  const auto client = tools_.server.info(peer);
  if (!client) return;
  tools_.blob_server.fetch(
      client->incarnation, request.init_latents_blob, request.init_latents_bytes, kUploadDeadline,
      [this, peer, header, submission = std::move(submission)](control::BlobResult blob) mutable {
        if (!tools_.server.info(peer)) return;  // it went while it sent
        if (!blob) {
          tools_.server.reply(peer, header,
                              wire::Failure{blob.failure.code,
                                            "init latents did not arrive: " + blob.failure.what});
          return;
        }
        submission.job.request.init_latents_blob = tools_.blobs.add(blob.bytes);
        read_model(peer, header, std::move(submission));
      });
}

void Gateway::refuse(control::PeerId peer, const wire::Header& header,
                     const wire::SubmitJob& submission, wire::FailureCode code,
                     const std::string& why) {
  tools_.blobs.remove(submission.job.request.init_latents_blob);
  tools_.server.reply(peer, header, wire::Failure{code, why});
}

void Gateway::read_model(control::PeerId peer, const wire::Header& header,
                         wire::SubmitJob submission) {
  if (submission.job.model.empty()) submission.job.model = facts_.model;
  if (submission.job.model.empty()) {
    return refuse(peer, header, submission, wire::FailureCode::bad_request,
                  "model is missing: the cluster was started without one");
  }
  if (reader_.waiting() >= kMaxReadings) {
    return refuse(peer, header, submission, wire::FailureCode::overloaded,
                  std::to_string(reader_.waiting()) +
                      " jobs wait for their models' folders to be read: try again later");
  }
  const std::string folder = submission.job.model;
  reader_.read(folder, [this, peer, header, asked = control::Clock::now(),
                        submission = std::move(submission)](const ModelReading& reading) {
    const auto took = control::Clock::now() - asked;
    if (!tools_.server.info(peer)) {  // it went meanwhile
      tools_.blobs.remove(submission.job.request.init_latents_blob);
    } else if (took > kReadDeadline) {
      refuse(peer, header, submission, wire::FailureCode::timeout,
             "[read_model] " + submission.job.model + ": it took " +
                 std::to_string(std::chrono::duration_cast<std::chrono::seconds>(took).count()) +
                 " s to be read, longer than a client waits");
    } else {
      accept(peer, header, submission, reading);
    }
  });
}

void Gateway::accept(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
                     const ModelReading& reading) {
  const auto refused = [&](wire::FailureCode code, const std::string& why) {
    refuse(peer, header, submission, code, why);
  };
  if (closed_) return refused(wire::FailureCode::refused, *closed_);
  if (!reading.model) return refused(wire::FailureCode::bad_request, reading.error);
  auto& job = submission.job;
  job.model = reading.folder;
  try {
    jobs::check_terms(job);
    if (job.parallelism.automatic) {
      const auto actors = static_cast<int>(tools_.members.living_count());
      const auto cores = static_cast<int>(std::thread::hardware_concurrency());
      job.parallelism = plan::automatic_parallelism(
          *reading.model, job.request, actors, plan::machine_here(facts_.device, actors, cores));
    }
    auto plan = plan::make_plan(*reading.model, job.request, job.parallelism);
    const auto world = static_cast<std::size_t>(plan.degrees.world());
    if (const auto living = tools_.members.living_count(); world > living) {
      const auto all = tools_.members.all().size();
      return refused(
          wire::FailureCode::bad_request,
          "dp × cfg × pp × ulysses × ring × tp = " + std::to_string(world) +
              " actors are needed, but the cluster has " + std::to_string(all) +
              (living < all ? ", of which " + std::to_string(all - living) + " cannot start" : ""));
    }
    const auto warnings = plan.warnings;
    const auto id = tools_.table.add(job, std::move(plan), peer, submission.detached, tools_.now(),
                                     reading.fingerprint);
    if (!id) {
      return refused(wire::FailureCode::overloaded,
                     std::to_string(tools_.table.queue().size()) +
                         " jobs are waiting already: try again later");
    }
    if (recorder_) recorder_->submitted(*id, job.request.prompts.front(), monotonic());
    tools_.server.reply(
        peer, header,
        wire::JobAccepted{
            .job = *id, .queue_position = tools_.table.position(*id), .warnings = warnings});
    tools_.runner.start_queued();
  } catch (const std::exception& error) {
    refused(wire::FailureCode::bad_request, error.what());
  }
}

void Gateway::watch(control::PeerId peer, const wire::Header& header, jobs::JobId id) {
  auto* job = tools_.table.find(id);
  if (!job) {
    tools_.server.reply(peer, header,
                        wire::Failure{wire::FailureCode::not_found,
                                      "job " + std::to_string(id) + " is not known here"});
    return;
  }
  job->watchers.insert(peer);
  tools_.server.reply(peer, header, wire::Done{wire::to_string(job->state)});
  if (wire::is_terminal(job->state)) tools_.server.send(peer, jobs::finished_message(*job));
}

void Gateway::cancel(control::PeerId peer, const wire::Header& header, jobs::JobId id) {
  const auto* job = tools_.table.find(id);
  if (!job) {
    tools_.server.reply(peer, header,
                        wire::Failure{wire::FailureCode::not_found,
                                      "job " + std::to_string(id) + " is not known here"});
    return;
  }
  if (wire::is_terminal(job->state)) {
    tools_.server.reply(peer, header,
                        wire::Failure{wire::FailureCode::bad_request,
                                      "job " + std::to_string(id) + " has already " +
                                          (job->state == wire::JobState::cancelled
                                               ? "been cancelled"
                                               : std::string(wire::to_string(job->state)))});
    return;
  }
  tools_.server.reply(peer, header,
                      wire::Done{"job " + std::to_string(id) + " is being cancelled"});
  tools_.runner.cancel(id, "cancelled by a client");
}

void Gateway::client_lost(control::PeerId peer) {
  std::vector<jobs::JobId> orphans;
  for (const auto& [id, job] : tools_.table.all()) {
    if (job.owner == peer && !job.detached && !wire::is_terminal(job.state)) orphans.push_back(id);
  }
  for (const auto id : orphans)
    tools_.runner.cancel(id, "its client is gone");
}

void Gateway::tell_progress(const jobs::JobEntry& job, const wire::JobProgress& progress) {
  for (const auto watcher : job.watchers)
    tools_.server.send(watcher, progress);
}

void Gateway::tell_finished(const jobs::JobEntry& job) {
  const auto message = jobs::finished_message(job);
  for (const auto watcher : job.watchers)
    tools_.server.send(watcher, message);
  if (job.plan.request.init_latents_blob != 0)
    tools_.blobs.remove(job.plan.request.init_latents_blob);
  if (job.state == wire::JobState::failed)
    note_failure("job " + std::to_string(job.id) + ": " + job.failure.what);
}

void Gateway::note_failure(const std::string& text) {
  if (recorder_)
    recorder_->note(recorder::Event::Kind::failure, 0, std::nullopt, text, monotonic());
  recent_failures_.push_back(text);
  if (recent_failures_.size() > kKeptFailures) recent_failures_.erase(recent_failures_.begin());
}

}  // namespace troupe::gateway
