#include "controller/gateway/gateway.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "controller/cluster/device_fit.h"
#include "controller/cluster/kinds.h"
#include "controller/cluster/memory_check.h"
#include "controller/gateway/init_image.h"
#include "controller/jobs/inputs.h"
#include "controller/jobs/replan.h"
#include "controller/jobs/report.h"
#include "controller/jobs/settled_stages.h"
#include "models/image/limits.h"

// How a job comes in: its model read, the request checked, planned and kept, the client answered.

namespace troupe::gateway {
namespace {

constexpr control::Milliseconds kUploadDeadline{60'000};
constexpr std::size_t kMaxReadings = 64;

}  // namespace

void Gateway::submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission) {
  if (auto* known = tools_.table.find_key(submission.key))
    return accept_again(peer, header, *known);
  const auto& request = submission.job.request;
  if (request.init_image_bytes != 0 && request.init_image_blob == 0) {
    tools_.server.reply(peer, header,
                        wire::Failure{wire::FailureCode::bad_request,
                                      "init image has a size, but was not sent along"});
    return;
  }
  if (request.init_latents_blob == 0 && request.init_image_blob == 0) {
    read_model(peer, header, std::move(submission));
    return;
  }
  const auto client = tools_.server.info(peer);
  if (!client) return;
  if (request.init_latents_blob != 0 && request.init_image_blob != 0) {
    tools_.server.reply(peer, header,
                        wire::Failure{wire::FailureCode::bad_request,
                                      "init image and init latents do not go together"});
    return;
  }
  const bool image = request.init_image_blob != 0;
  if (image && request.init_image_bytes > models::kMaxPngBytes) {
    tools_.server.reply(
        peer, header,
        wire::Failure{wire::FailureCode::bad_request,
                      "init image has " + std::to_string(request.init_image_bytes) +
                          " bytes: at most " + std::to_string(models::kMaxPngBytes)});
    return;
  }
  const auto sent = image ? request.init_image_blob : request.init_latents_blob;
  const auto bytes = image ? request.init_image_bytes : request.init_latents_bytes;
  tools_.blob_server.fetch(
      client->incarnation, sent, bytes, kUploadDeadline,
      [this, peer, header, image,
       submission = std::move(submission)](control::BlobResult blob) mutable {
        if (!tools_.server.info(peer)) return;  // it went while it sent
        if (!blob) {
          tools_.server.reply(
              peer, header,
              wire::Failure{blob.failure.code, std::string(image ? "init image" : "init latents") +
                                                   " did not arrive: " + blob.failure.what});
          return;
        }
        if (const auto wrong = image ? wrong_with_init_image(*blob.bytes) : std::string();
            !wrong.empty()) {
          tools_.server.reply(peer, header, wire::Failure{wire::FailureCode::bad_request, wrong});
          return;
        }
        auto& own = submission.job.request;
        (image ? own.init_image_blob : own.init_latents_blob) = tools_.blobs.add(blob.bytes);
        read_model(peer, header, std::move(submission));
      });
}

void Gateway::drop_inputs(wire::ImageRequest request) {
  for (const auto& input : jobs::input_blobs(request))
    if (*input.id != 0) tools_.blobs.remove(*input.id);
}

void Gateway::refuse(control::PeerId peer, const wire::Header& header,
                     const wire::SubmitJob& submission, wire::FailureCode code,
                     const std::string& why) {
  drop_inputs(submission.job.request);
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
  const auto loras = submission.job.request.loras;
  reader_.read(folder, loras,
               [this, peer, header, asked = control::Clock::now(),
                submission = std::move(submission)](const ModelReading& reading) {
                 const auto took = control::Clock::now() - asked;
                 if (!tools_.server.info(peer)) {  // it went meanwhile
                   drop_inputs(submission.job.request);
                 } else if (took > tools_.accept_within) {
                   refuse(peer, header, submission, wire::FailureCode::timeout,
                          "[read_model] " + submission.job.model + ": it took " +
                              std::to_string(
                                  std::chrono::duration_cast<std::chrono::seconds>(took).count()) +
                              " s to be read, longer than a client waits");
                 } else {
                   accept(peer, header, submission, reading, asked);
                 }
               });
}

plan::Machine Gateway::machine_for(const wire::ImageRequest& request) const {
  if (tools_.machine) return tools_.machine(request.weight_dtype);
  const auto actors = static_cast<int>(std::max<std::size_t>(1, tools_.members.living_count()));
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return plan::machine_here(facts_.device, actors, cores);
}

void Gateway::accept(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
                     const ModelReading& reading, control::Clock::time_point asked) {
  const auto refused = [&](wire::FailureCode code, const std::string& why) {
    refuse(peer, header, submission, code, why);
  };
  if (closed_) return refused(wire::FailureCode::refused, *closed_);
  if (auto* known = tools_.table.find_key(submission.key)) {
    drop_inputs(submission.job.request);
    return accept_again(peer, header, *known);
  }
  if (!reading.model) return refused(wire::FailureCode::bad_request, reading.error);
  auto& job = submission.job;
  job.model = reading.folder;
  job.request.loras = reading.loras;
  job.request.seeds.clear();
  const auto fits = [this](const plan::Plan& other) { return !tools_.deployments.shortage(other); };
  plan::Plan plan;
  const auto machine = machine_for(job.request);
  try {
    jobs::check_terms(job);
    if (job.parallelism.automatic) {
      const auto actors =
          std::max(1, cluster::most_alike(tools_.members, job.request.weight_dtype));
      job.parallelism = jobs::automatic_within(*reading.model, job.request, actors, machine,
                                               {tools_.members.memory_steps(), fits});
    }
    plan = plan::make_plan(*reading.model, job.request, job.parallelism, machine);
    plan.lora_fingerprints = reading.lora_fingerprints;
    if (job.parallelism.stages.empty())
      jobs::settle_stages(plan, job.model, reading.fingerprint, *reading.model, machine,
                          {tools_.members, tools_.deployments, tools_.table});
  } catch (const std::exception& error) {
    return refused(wire::FailureCode::bad_request, error.what());
  }
  const auto& weights = plan.request.weight_dtype;
  const bool computable = std::ranges::any_of(tools_.members.all(), [&](const auto& member) {
    return member.second.hires() && cluster::has_products_of(member.second.device_kind(), weights);
  });
  if (!weights.empty() && !computable)
    return refused(wire::FailureCode::bad_request,
                   cluster::no_products_text(weights, "this cluster"));
  const auto places = cluster::most_alike(tools_.members, weights);
  if (const auto world = plan.degrees.world(); world > places)
    return refused(wire::FailureCode::bad_request,
                   cluster::too_few_text(tools_.members, weights, world));
  if (const auto lack = tools_.deployments.shortage(plan)) {
    return refused(wire::FailureCode::out_of_memory,
                   cluster::too_large(plan, *lack, tools_.members.name_of(lack->actor)) + ": " +
                       cluster::memory_remedy(*reading.model, job, places, fits, {}, {}, machine));
  }
  if (const auto bar = tools_.runner.bar_to_batching(plan.request); job.may_batch && !bar.empty())
    plan.warnings.push_back("--may-batch has no effect: " + bar);
  const auto added = tools_.table.add(job, std::move(plan), peer, submission.detached, tools_.now(),
                                      reading.fingerprint);
  if (!added) {
    return refused(wire::FailureCode::overloaded, std::to_string(tools_.table.queue().size()) +
                                                      " jobs are waiting already: try again later");
  }
  const auto id = *added;
  auto& entry = *tools_.table.find(id);
  entry.key = submission.key;
  entry.user = tools_.server.user(peer).name;
  entry.model = reading.model;
  askers_[id].push_back({peer, header});
  // Now: it may end before it is in the journal.
  if (recorder_) recorder_->submitted(id, entry.plan.request.prompts.front(), monotonic());
  if (!tools_.journal) return admit(id, /*in_time=*/true);
  tools_.table.hold(id, true);
  try {
    tools_.journal->accepted(entry, [this, id, asked](const std::optional<std::string>& error) {
      if (error) return not_kept(id, *error);
      admit(id, control::Clock::now() - asked < tools_.accept_within);
    });
  } catch (const wire::WireError& error) {
    not_kept(id, error.what());
  }
}

void Gateway::answer_accepted(control::PeerId peer, const wire::Header& header,
                              const jobs::JobEntry& job) {
  tools_.server.reply(peer, header,
                      wire::JobAccepted{.job = job.id,
                                        .queue_position = tools_.table.position(job.id),
                                        .warnings = job.plan.warnings});
}

void Gateway::accept_again(control::PeerId peer, const wire::Header& header, jobs::JobEntry& job) {
  if (!job_for(peer, header, job.id)) return;
  if (!job.detached) job.owner = peer;
  job.watchers.insert(peer);
  if (const auto asking = askers_.find(job.id); asking != askers_.end()) {
    asking->second.push_back({peer, header});
    return;
  }
  answer_accepted(peer, header, job);
  if (wire::is_terminal(job.state) && !job.unsaid)
    tools_.server.send(peer, jobs::finished_message(job));
}

void Gateway::admit(jobs::JobId id, bool in_time) {
  const auto askers = askers_.extract(id);
  tools_.table.hold(id, false);
  const auto* job = tools_.table.find(id);
  if (!job || askers.empty()) return;
  for (const auto& asker : askers.mapped())
    answer_accepted(asker.peer, asker.header, *job);
  // Nobody would know of it.
  if (!in_time) return tools_.runner.cancel(id, "it was accepted too late for its client");
  tools_.runner.start_queued();
}

void Gateway::not_kept(jobs::JobId id, const std::string& why) {
  const auto askers = askers_.extract(id);
  const auto* job = tools_.table.find(id);
  if (job && job->state == wire::JobState::queued) {
    drop_inputs(job->spec.request);
    tools_.table.withdraw(id);
    if (recorder_) recorder_->withdrawn(id, why, monotonic());
  }
  if (askers.empty()) return;
  for (const auto& asker : askers.mapped())
    tools_.server.reply(asker.peer, asker.header, wire::Failure{wire::FailureCode::refused, why});
}

}  // namespace troupe::gateway
