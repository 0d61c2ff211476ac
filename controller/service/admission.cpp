#include "controller/service/admission.h"

#include <algorithm>
#include <exception>
#include <tuple>

#include "base/format.h"
#include "controller/deployments/device_kinds.h"
#include "controller/deployments/memory_room.h"
#include "controller/jobs/job_table.h"
#include "controller/jobs/report.h"
#include "controller/plan/request_defaults.h"
#include "controller/service/permissions.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"
#include "transport/control/after.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"
#include "transport/wire/request_rules.h"

namespace troupe::service {

namespace {

constexpr std::size_t kMaxReadings = 64;
constexpr std::size_t kMaxPlans = 64;

/// Sides of all pictures that a request brings.
std::vector<std::int32_t> pixels_of(const wire::ImageRequest& request) {
  std::vector<std::int32_t> sides;
  for (const auto& input : jobs::input_blobs(request))
    if (input.height) sides.insert(sides.end(), {*input.height, *input.width});
  return sides;
}

}  // namespace

void Admission::submit(control::PeerId peer, const wire::Header& header,
                       wire::SubmitJob submission) {
  if (closed_) return refuse(peer, header, {wire::FailureCode::refused, *closed_});
  if (auto* known = tools_.table.find_key(submission.key))
    return accept_again(peer, header, *known);
  using enum wire::JobField;
  const auto bad = [&](wire::JobField field, const std::string& why) {
    refuse(peer, header, {wire::FailureCode::bad_request, why, field});
  };
  auto& request = submission.job.request;
  for (const auto& input : jobs::input_blobs(request)) {
    if (!input.height || *input.id != 0) continue;
    *input.height = *input.width = 0;
    if (*input.bytes != 0)
      return bad(input.field,
                 "`" + to_string(input.field) + "` has a size, but was not sent along");
  }
  if (request.prompt_embeds_blob == 0 && !request.prompt_embeds.empty())
    return bad(prompt_embeds, "`prompt_embeds` have shapes, but were not sent along");
  if (request.prompt_embeds.empty() && request.prompt_embeds_blob != 0)
    return bad(prompt_embeds, "`prompt_embeds` were sent along without shapes");
  try {
    wire::check_submission(submission.job);
  } catch (const wire::BadField& error) {
    return bad(error.field, error.what());
  }
  read_model(std::make_shared<Incoming>(
      Incoming{peer, header, std::move(submission), control::Clock::now()}));
}

void Admission::drop_inputs(wire::ImageRequest request) {
  for (const auto& input : jobs::input_blobs(request))
    if (*input.id != 0) tools_.blobs.remove(*input.id);
}

void Admission::refuse(control::PeerId peer, const wire::Header& header, const wire::Failure& why) {
  tools_.server.reply(peer, header, why);
}

void Admission::refuse(const Incoming& job, const wire::Failure& why) {
  if (job.has_inputs) drop_inputs(job.submission.job.request);
  refuse(job.peer, job.header, why);
}

void Admission::read_model(const IncomingPtr& job) {
  auto& spec = job->submission.job;
  if (spec.model.empty()) spec.model = facts_.model;
  if (spec.model.empty()) {
    return refuse(*job,
                  {wire::FailureCode::bad_request,
                   "model is missing: the cluster was started without one", wire::JobField::model});
  }
  const auto overloaded = [&](std::size_t waiting, const std::string& what) {
    refuse(*job, {wire::FailureCode::overloaded,
                  fmt::format("{} jobs wait {}: try again later", waiting, what)});
  };
  if (reader_.waiting() >= kMaxReadings)
    return overloaded(reader_.waiting(), "for their models' folders to be read");
  if (planner_.waiting() >= kMaxPlans) return overloaded(planner_.waiting(), "to be planned");
  reader_.read(
      spec.model, spec.request, tools_.accept_within, [this, job](const ModelReading& reading) {
        auto& own = job->submission.job;
        if (!tools_.server.info(job->peer)) return;  // it went meanwhile
        if (reading.late || control::Clock::now() - job->asked > tools_.accept_within)
          return refuse(*job, too_late("read_model", "read", *job));
        if (!closed_ && !reading.model)
          return refuse(*job, {wire::FailureCode::bad_request, reading.error, reading.field});
        if (const auto why = bar(*job)) return refuse(*job, *why);
        job->reading = reading;
        own.model = reading.folder;
        own.request.loras = reading.loras;
        own.request.controlnets = reading.controlnets;
        for (const auto& unused : reading.lora_warnings)
          job->warnings.push_back("`" + to_string(wire::JobField::loras) + "` " + unused);
        own.request.embeddings = reading.embeddings;
        own.request.seeds.clear();
        own.request.pictures_of_jobs.clear();
        if (reading.model) {
          try {
            plan::settle_images(own.request, *reading.model);
            wire::check_submission(own);
          } catch (const wire::BadField& error) {
            return refuse(*job, {wire::FailureCode::bad_request, error.what(), error.field});
          }
        }
        const auto inputs = jobs::input_blobs(own.request);
        const bool some =
            std::ranges::any_of(inputs, [](const auto& input) { return *input.id != 0; });
        plan(job,
             job->submission.only_check || some ? &Admission::fetch_inputs : &Admission::accept);
      });
}

void Admission::plan(const IncomingPtr& job, void (Admission::*next)(const IncomingPtr&)) {
  planner_.plan({.job = job->submission.job,
                 .reading = job->reading,
                 .bar = [this, job] { return bar(*job); },
                 .handler =
                     [this, job, next](PlannedJob planned) {
                       job->planned = std::move(planned);
                       if (const auto why = refusal(*job)) return refuse(*job, *why);
                       (this->*next)(job);
                     }});
}

std::optional<std::string> Admission::no_room_for_input(control::PeerId client,
                                                        const std::string& behalf,
                                                        std::uint64_t bytes) const {
  std::uint64_t all = 0, of_client = 0, on_same_behalf = 0;
  const auto count = [&](control::PeerId of, const std::string& whose, std::uint64_t more) {
    all += more;
    if (of == client) of_client += more;
    if (whose == behalf) on_same_behalf += more;
  };
  for (const auto& [number, upload] : uploads_)
    count(upload.client, upload.behalf, upload.bytes);
  for (const auto& [id, job] : tools_.table.all()) {
    if (has_ended(job.state)) continue;
    for (const auto& input : jobs::input_blobs(job.spec.request))
      if (*input.id != 0) count(job.client.number, job.spec.on_behalf_of, *input.bytes);
  }
  const auto full = [bytes](std::uint64_t held, std::uint64_t most) {
    return bytes > most || held > most - bytes;
  };
  const auto text = [bytes](const std::string& whose, std::uint64_t held, std::uint64_t most) {
    return fmt::format(
        "the job begins with {} bytes; {} {} are held already, at most {} are: try again when some "
        "have ended",
        bytes, whose, held, most);
  };
  const auto& most = tools_.max_input_bytes;
  if (!behalf.empty() && full(on_same_behalf, most.on_same_behalf))
    return text("of the jobs of " + behalf, on_same_behalf, most.on_same_behalf);
  if (full(of_client, most.of_client))
    return text("of this client's jobs", of_client, most.of_client);
  if (full(all, most.all)) return text("of all jobs'", all, most.all);
  return std::nullopt;
}

void Admission::fetch_inputs(const IncomingPtr& job) {
  const auto& [peer, header] = std::tie(job->peer, job->header);
  const auto& spec = job->submission.job;
  std::uint64_t bytes = 0;
  for (const auto& input : jobs::input_blobs(spec.request))
    if (*input.id != 0) bytes += *input.bytes;
  if (const auto why = no_room_for_input(peer, spec.on_behalf_of, bytes))
    return refuse(*job, {wire::FailureCode::overloaded, *why});
  if (job->submission.only_check) {
    tools_.server.reply(peer, header, wire::JobAccepted{.warnings = warnings_of(*job)});
    return;
  }
  const auto upload = ++last_upload_;
  uploads_[upload] = {peer, spec.on_behalf_of, bytes,
                      control::Clock::now() + wire::kUploadDeadline};
  fetch_input(job, upload, 0);
}

void Admission::fetch_input(const IncomingPtr& job, std::uint64_t upload, std::size_t index) {
  const auto inputs = jobs::input_blobs(job->submission.job.request);
  while (index < inputs.size() && *inputs[index].id == 0)
    ++index;
  if (index == inputs.size()) {
    uploads_.erase(upload);
    job->has_inputs = true;
    job->asked = control::Clock::now();
    return accept_with_inputs(job);
  }
  const auto sent = *inputs[index].id;
  const auto bytes = *inputs[index].bytes;
  const auto left = std::chrono::duration_cast<control::Milliseconds>(uploads_.at(upload).until -
                                                                      control::Clock::now());
  tools_.blob_server.fetch(
      tools_.server.info(job->peer)->incarnation, sent, bytes,
      std::max(left, control::Milliseconds(1)),
      [this, job, upload, index](control::BlobResult blob) {
        auto& request = job->submission.job.request;
        const auto inputs = jobs::input_blobs(request);
        const auto give_up = [&] {
          uploads_.erase(upload);
          for (auto rest = index; rest < inputs.size(); ++rest)
            *inputs[rest].id = 0;  // the client's, not fetched
          drop_inputs(request);
        };
        if (!tools_.server.info(job->peer)) return give_up();  // it went while it sent
        const auto field = inputs[index].field;
        const std::string name = "`" + to_string(field) + "`";
        if (!blob) {
          give_up();
          return refuse(*job,
                        {blob.failure.code, name + " did not arrive: " + blob.failure.what, field});
        }
        if (inputs[index].height) {
          models::PictureHeader picture;
          try {
            picture = models::read_picture_header(*blob.bytes, models::unpack_png_text);
          } catch (const std::runtime_error& error) {
            give_up();
            return refuse(*job, {wire::FailureCode::bad_request, name + " " + error.what(), field});
          }
          *inputs[index].height = static_cast<std::int32_t>(picture.height());
          *inputs[index].width = static_cast<std::int32_t>(picture.width());
          for (const auto& text : models::left_out(picture))
            job->warnings.push_back(name + " " + text);
        }
        *inputs[index].id = tools_.blobs.add(blob.bytes);
        fetch_input(job, upload, index + 1);
      });
}

wire::Failure Admission::too_late(const char* where, const char* what, const Incoming& job) const {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(tools_.accept_within).count();
  return {wire::FailureCode::timeout,
          fmt::format("[{}] {}: was not {} within {} s, and no client waits for longer", where,
                      job.submission.job.model, what, seconds)};
}

std::optional<wire::Failure> Admission::bar(const Incoming& job) const {
  if (closed_) return wire::Failure{wire::FailureCode::refused, *closed_};
  if (!tools_.server.info(job.peer))
    return wire::Failure{wire::FailureCode::cancelled, "its client is gone"};
  if (control::Clock::now() - job.asked > tools_.accept_within)
    return too_late("plan", "planned", job);
  if (tools_.members.all().empty())
    return wire::Failure{wire::FailureCode::overloaded,
                         "the cluster has no actors yet: `troupe join` brings a host's"};
  return std::nullopt;
}

std::optional<wire::Failure> Admission::refusal(const Incoming& job) const {
  const auto& [plan, shortage] = std::tie(job.planned.plan, job.planned.shortage);
  if (job.planned.failure) return job.planned.failure;
  const auto weights = plan.request.weight_dtype;
  const bool computable = std::ranges::any_of(tools_.members.all(), [&](const auto& member) {
    return (member.second.accepts_jobs() || member.second.draining) &&
           cluster::has_products_of(member.second.device_kind(), weights);
  });
  if (weights != WeightChoice::as_computed && !computable)
    return wire::Failure{wire::FailureCode::bad_request,
                         cluster::no_products_text(weights, "this cluster"),
                         wire::JobField::weight_dtype};
  const auto world = plan.degrees.world();
  if (world > cluster::most_alike(tools_.members, weights))
    return wire::Failure{world > cluster::most_alike_with_drained(tools_.members, weights)
                             ? wire::FailureCode::bad_request
                             : wire::FailureCode::refused,
                         cluster::too_few_text(tools_.members, weights, world)};
  if (shortage)
    return wire::Failure{
        wire::FailureCode::out_of_memory,
        cluster::too_large(plan, *shortage, tools_.members.name_of(shortage->actor)) + ": " +
            job.planned.remedy};
  return std::nullopt;
}

std::vector<std::string> Admission::warnings_of(const Incoming& job) const {
  auto warnings = job.planned.plan.warnings;
  const auto why = tools_.runner.batching_obstacle(job.planned.plan.request);
  if (job.submission.job.may_batch && !why.empty())
    warnings.push_back(std::string(wire::kJobOptions.may_batch) + " has no effect: " + why);
  warnings.insert(warnings.end(), job.warnings.begin(), job.warnings.end());
  return warnings;
}

void Admission::accept_with_inputs(const IncomingPtr& job) {
  auto& planned = job->planned.plan.request;
  const auto& request = job->submission.job.request;
  if (pixels_of(planned) != pixels_of(request) || !planner_.holds(job->planned.plan))
    return plan(job, &Admission::accept);
  const auto kept = jobs::input_blobs(request);
  const auto own = jobs::input_blobs(planned);
  for (std::size_t i = 0; i < own.size(); ++i)
    *own[i].id = *kept[i].id;
  if (const auto why = bar(*job)) return refuse(*job, *why);
  accept(job);
}

void Admission::accept(const IncomingPtr& incoming) {
  auto& [peer, header, submission, asked, reading, planned, has_inputs, more] = *incoming;
  if (auto* known = tools_.table.find_key(submission.key); known && !closed_) {
    if (has_inputs) drop_inputs(submission.job.request);
    return accept_again(peer, header, *known);
  }
  planned.plan.warnings = warnings_of(*incoming);
  submission.job.parallelism = planned.parallelism;
  const auto added = tools_.table.add(submission.job, std::move(planned.plan), peer,
                                      submission.detached, tools_.now(), reading.fingerprint);
  if (!added) {
    return refuse(*incoming, {wire::FailureCode::overloaded,
                              fmt::format("{} jobs are waiting already: try again later",
                                          tools_.table.count(JobState::queued))});
  }
  const auto id = *added;
  auto& entry = *tools_.table.find(id);
  const auto user = tools_.server.user(peer);
  entry.client.key = submission.key;
  entry.client.user = user.name;
  entry.client.apart = user.role < control::ClientRole::all_jobs;
  entry.model = reading.model;
  askers_[id].push_back({peer, header});
  // Now: it may end before it is in the journal.
  if (tools_.recorder)
    tools_.recorder->submitted(id, entry.plan.request.prompts.front(), tools_.monotonic());
  if (!tools_.journal) return admit(id, /*in_time=*/true);
  tools_.table.hold(id, "waits to be kept in the journal");
  try {
    tools_.journal->accepted(entry,
                             [this, id, asked = asked](const std::optional<std::string>& error) {
                               if (error) return not_kept(id, *error);
                               admit(id, control::Clock::now() - asked < tools_.accept_within);
                             });
  } catch (const wire::WireError& error) {
    not_kept(id, error.what());
  }
}

void Admission::answer_accepted(control::PeerId peer, const wire::Header& header,
                                const jobs::JobEntry& job) {
  tools_.server.reply(peer, header,
                      wire::JobAccepted{.job = job.id,
                                        .queue_position = tools_.table.position(job.id),
                                        .steps = job.plan.request.steps,
                                        .warnings = job.plan.warnings});
}

void Admission::accept_again(control::PeerId peer, const wire::Header& header,
                             jobs::JobEntry& job) {
  if (!job_for(tools_.server, tools_.table, peer, header, job.id)) return;
  if (!job.client.detached) {
    job.client.owner = peer;
    job.client.adopted = false;
  }
  job.client.watchers.insert(peer);
  if (const auto asking = askers_.find(job.id); asking != askers_.end()) {
    asking->second.push_back({peer, header});
    return;
  }
  answer_accepted(peer, header, job);
  if (has_ended(job.state) && !job.client.unreported)
    tools_.server.send(peer, jobs::finished_message(job));
}

void Admission::admit(jobs::JobId id, bool in_time) {
  const auto askers = askers_.extract(id);
  tools_.table.let_go(id);
  const auto* job = tools_.table.find(id);
  if (!job || askers.empty()) return;
  for (const auto& asker : askers.mapped())
    answer_accepted(asker.peer, asker.header, *job);
  // Nobody would know of it.
  if (!in_time) return tools_.runner.cancel(id, "it was accepted too late for its client");
  tools_.runner.start_queued();
}

void Admission::not_kept(jobs::JobId id, const std::string& why) {
  const auto askers = askers_.extract(id);
  const auto* job = tools_.table.find(id);
  if (job && job->state == JobState::queued) {
    drop_inputs(job->spec.request);
    tools_.table.withdraw(id);
    if (tools_.recorder) tools_.recorder->withdrawn(id, why, tools_.monotonic());
  }
  if (askers.empty()) return;
  for (const auto& asker : askers.mapped())
    tools_.server.reply(asker.peer, asker.header, wire::Failure{wire::FailureCode::refused, why});
}

namespace {

constexpr std::chrono::minutes kReadWithin{10};  // nobody waits for an answer

}  // namespace

void RestoredJobs::take_up(const journal::Revival& revival, const std::string& cause) {
  const auto remember = [this](const jobs::JobEntry& job) {
    if (tools_.recorder)
      tools_.recorder->submitted(job.id, job.spec.request.prompts.front(), tools_.monotonic());
  };
  for (const auto id : revival.cancelled) {
    remember(*tools_.table.find(id));
    tools_.runner.cancel_again(id);
  }
  for (const auto id : revival.to_plan) {
    const auto* job = tools_.table.find(id);
    if (!job->client.detached)
      await_client(id, "its client has not come back after its controller's restart");
    remember(*job);
    reader_.read(job->spec.model, job->spec.request, kReadWithin,
                 [this, id, cause](const ModelReading& reading) { plan(id, cause, reading); });
  }
}

jobs::JobEntry* RestoredJobs::awaited(jobs::JobId id) {
  auto* job = tools_.table.find(id);
  return !closed_ && job && job->state == JobState::queued ? job : nullptr;
}

void RestoredJobs::give_up(jobs::JobId id, const std::string& cause, const std::string& why) {
  tools_.runner.give_up(
      id, {wire::FailureCode::bad_request, cause + ", and the job cannot go on: " + why});
}

void RestoredJobs::plan(jobs::JobId id, const std::string& cause, const ModelReading& reading) {
  const auto* job = awaited(id);
  if (!job) return;
  if (!reading.model) return give_up(id, cause, reading.error);
  if (reading.fingerprint != job->fingerprint)
    return give_up(id, cause, job->spec.model + " was changed since it came in");
  if (reading.lora_fingerprints != job->plan.lora_fingerprints)
    return give_up(id, cause, "a LoRA's file was changed since it came in");
  if (reading.controlnet_fingerprints != job->plan.controlnet_fingerprints)
    return give_up(id, cause, "a ControlNet's folder was changed since it came in");
  if (reading.embeddings != job->spec.request.embeddings)
    return give_up(id, cause, "an embedding's file was changed since it came in");
  planner_.plan(
      {.job = job->spec,
       .reading = reading,
       .must_fit = false,
       .bar = [this, id]() -> std::optional<wire::Failure> {
         if (awaited(id)) return std::nullopt;
         return wire::Failure{wire::FailureCode::cancelled, "the job is not awaited"};
       },
       .handler = [this, id, cause, reading](
                      PlannedJob planned) { take_up(id, cause, reading, std::move(planned)); }});
}

void RestoredJobs::take_up(jobs::JobId id, const std::string& cause, const ModelReading& reading,
                           PlannedJob planned) {
  auto* job = awaited(id);
  if (!job) return;
  if (planned.failure) return give_up(id, cause, planned.failure->what);
  job->model = reading.model;
  const auto failure =
      journal::take_up(*job, std::move(planned.plan), cause, tools_.now(), tools_.max_restarts);
  if (tools_.journal) tools_.journal->changed(*job);
  if (failure) return tools_.runner.give_up(id, *failure);
  // Hosts may join again, and what an actor may hold is known when it says so.
  tools_.runner.await_actors(id, "its controller was started again");
}

void RestoredJobs::await_client(jobs::JobId id, const std::string& cause) {
  const auto absence = away_[id] = ++absences_;
  control::after(tools_.io, tools_.grace, [this, id, absence, cause] {
    const auto waited = away_.find(id);
    if (waited == away_.end() || waited->second != absence) return;
    away_.erase(waited);
    const auto* job = tools_.table.find(id);
    if (!closed_ && job && job->client.owner == 0 && !has_ended(job->state))
      tools_.runner.cancel(id, cause);
  });
}

}  // namespace troupe::service
