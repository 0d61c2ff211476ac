#include "actors/worker_jobs.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <string_view>

#include "actors/device.h"
#include "actors/stage/job_latents.h"
#include "actors/stage/memory.h"
#include "actors/stage/rehearsal.h"
#include "base/available_memory.h"
#include "base/error_text.h"

namespace troupe::actors {
namespace {

/// LibTorch has a type of its own for a device's memory that has run out. For the host's there is
/// none: its allocator names itself in the text.
bool is_out_of_host_memory(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr &&
         std::string_view(torch->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         is_out_of_host_memory(error);
}

constexpr std::chrono::milliseconds kBoundaryDeadline{60'000};

double seconds_of(const wire::ClockSpan& span) {
  return static_cast<double>(span.end_ns - span.begin_ns) / 1e9;
}

StepPlace place_of(const wire::Command& command) {
  return {command.step, command.patch, command.part};
}

/// The job's latents are of use here.
bool has_latents(const wire::BeginJob& begin) {
  return begin.stage.rank == 0 || begin.stage.rank + 1 == begin.stage.degree ||
         begin.vae.degree > 0;
}

/// True when the error came from a peer or the end of the epoch, so that it names no cause of its
/// own.
bool is_collateral(const std::exception& error) {
  return dynamic_cast<const tensor::TransferError*>(&error) != nullptr ||
         dynamic_cast<const EpochEnded*>(&error) != nullptr;
}

wire::TaskFailed failed(std::uint64_t epoch, std::uint64_t job, std::optional<std::uint32_t> task,
                        const std::exception& error) {
  return {.epoch = epoch,
          .job = job,
          .task = task.value_or(0),
          .failure = to_failure(error),
          .collateral = is_collateral(error),
          .begin = !task};
}

}  // namespace

bool WorkerTools::retire_after(const std::exception& error) const {
  const auto why = lost_device(error, device);
  if (!why) return false;
  retire(kLostDevice + *why);
  return true;
}

wire::Failure to_failure(const std::exception& error) {
  auto text = first_line(text_of(error));
  if (const auto limit = address_limit_text(); !limit.empty() && is_out_of_host_memory(error))
    text += " (" + limit + ")";
  if (is_out_of_memory(error)) return {wire::FailureCode::out_of_memory, text};
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    return {wire::FailureCode::bad_request, text};
  return {wire::FailureCode::internal, text};
}

void JobTimes::add(wire::TaskKind kind, double took, double waited) {
  std::lock_guard lock(mutex_);
  waits_ += waited;
  busy_ += took - waited;
  switch (kind) {
    case wire::TaskKind::encode_text:
      text_ += took;
      break;
    case wire::TaskKind::micro_step:
      denoise_ += took;
      break;
    case wire::TaskKind::decode:
      decode_ += took;
      break;
  }
}

void JobTimes::tell(wire::ActorJobStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.busy_seconds = busy_;
  stats.peer_wait_seconds = waits_;
  stats.text_seconds = text_;
  stats.denoise_seconds = denoise_;
  stats.decode_seconds = decode_;
}

WorkerJobs::WorkerJobs(const WorkerTools& tools, Stages& stages) : tools_(tools), stages_(stages) {
  if (!tools_.clock) return;
  ends_ = std::make_unique<TaskEnds>(
      TaskEnds::Tools{.begin = [this] { make_current(tools_.device); },
                      .ended = [this](auto epoch) { return tools_.progress.ended(epoch); },
                      .now_ns = monotonic_ns,
                      .waits = [this] { tools_.progress.tick(); },
                      .patience = tools_.transfer_deadline});
}

void WorkerJobs::note_idle(double seconds) {
  for (auto& [id, running] : jobs_) {
    if (running.tasks_to_come) running.controller_wait_seconds += seconds;
  }
}

std::string WorkerJobs::name_of(std::uint64_t job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() ? found->second.job->begin().name : "job " + std::to_string(job);
}

std::optional<std::uint64_t> WorkerJobs::epoch_of(std::uint64_t job) const {
  const auto found = jobs_.find(job);
  return found != jobs_.end() ? std::optional(found->second.job->begin().epoch) : std::nullopt;
}

const RunningJob& WorkerJobs::find(std::uint64_t job) const {
  const auto found = jobs_.find(job);
  if (found != jobs_.end()) return found->second;
  throw std::out_of_range("[actor] " + name_of(job) +
                          " is not here: it has not begun, has ended, or runs on other actors");
}

// Tasks and receives.

RunningJob* WorkerJobs::job_of(const TaskEntry& entry, const char* what) {
  const auto job = entry.command.job;
  if (const auto found = jobs_.find(job); found != jobs_.end()) return &found->second;
  const auto begun = begun_.find(entry.epoch);
  if (begun != begun_.end() && begun->second.contains(job)) return nullptr;
  throw std::logic_error(std::string("[actor] a ") + what + " came for " + name_of(job) +
                         ", which has not begun here");
}

bool WorkerJobs::skips(std::uint64_t epoch) const {
  return tools_.progress.ended(epoch) || broken_epochs_.contains(epoch);
}

void WorkerJobs::run(const TaskEntry& entry) {
  if (skips(entry.epoch)) return;
  if (entry.command.receive) return post_receive(entry);
  try {
    post_receives_ahead(entry);
    if (broken_epochs_.contains(entry.epoch)) return;
    auto* running = job_of(entry, "task");
    if (running && running->tasks.insert(entry.command.task).second) run_task(*running, entry);
  } catch (const std::exception& error) {
    report_failure(entry.epoch, entry.command.job, entry.command.task, error);
  }
}

void WorkerJobs::post_receives_ahead(const TaskEntry& task) {
  // If jobs are rehearsed, micro-steps need nothing new. Other tasks may have to wait for the
  // device to come to rest, which a receive that waits there for a later task's tensor would
  // prevent.
  if (tools_.rehearses && task.command.kind != wire::TaskKind::micro_step) return;
  const auto past = tools_.rehearses ? Mailbox::Past::micro_steps : Mailbox::Past::tasks;
  // A receive's group carries nothing else to this end, so it may go ahead of tasks.
  for (const auto& receive : tools_.mailbox.take_receives(task.epoch, past))
    post_receive(receive);
}

void WorkerJobs::post_receive(const TaskEntry& entry) {
  const auto& command = entry.command;
  if (broken_epochs_.contains(entry.epoch)) return;
  try {
    auto* running = job_of(entry, "receive");
    if (!running || !running->receives.insert(command.task).second) return;
    note_event(WorkEvent::posts_receive, command.job);
    running->job->post_receive(place_of(command), command.stage);
  } catch (const std::exception& error) {
    report_failure(entry.epoch, command.job, command.task, error);
  }
}

void WorkerJobs::run_task(RunningJob& running, const TaskEntry& entry) {
  const auto& command = entry.command;
  task_ = command.task;
  const auto waited_before = running.job->waits().seconds();
  auto mark = tools_.clock ? tools_.clock->mark() : nullptr;
  const auto began = monotonic_ns();
  auto result = call(*running.job, command);
  const auto ended = monotonic_ns();
  note_progress(running, command);
  note_end(running, entry, std::move(result), {began, ended},
           running.job->waits().seconds() - waited_before, std::move(mark));
}

TaskResult WorkerJobs::call(StageJob& job, const wire::Command& command) {
  // A delay shows no progress, as what hangs shows none; the end of its epoch ends it.
  const auto epoch = job.begin().epoch;
  const bool poisons = tools_.view.meet_faults(command.kind == wire::TaskKind::micro_step, [&] {
    if (tools_.progress.ended(epoch))
      throw EpochEnded("[actor] epoch " + std::to_string(epoch) + " has ended");
  });
  if (poisons) job.step().poison();
  auto result = run(job, command);
  job.context().tools.stage.check_whole();
  return result;
}

TaskResult WorkerJobs::run(StageJob& job, const wire::Command& command) {
  switch (command.kind) {
    case wire::TaskKind::encode_text:
      return job.encode_text();
    case wire::TaskKind::micro_step:
      return job.micro_step(place_of(command));
    case wire::TaskKind::decode:
      break;
  }
  return job.decode(command.part);
}

void WorkerJobs::note_progress(RunningJob& running, const wire::Command& command) {
  running.last_task = task_text(command);
  const auto& begin = running.job->begin();
  if (command.kind == wire::TaskKind::decode &&
      (begin.vae.degree == 0 || command.part + 1 == std::ssize(begin.decode_parts)))
    running.tasks_to_come = false;
  if (command.kind != wire::TaskKind::micro_step) return;
  running.newest_step = command.step;
  if (!running.job->context().ends_step(place_of(command))) return;
  running.whole_step = command.step;
  const bool decodes = begin.vae.degree > 0 || begin.row_rank >= 0;
  if (command.step + 1 == begin.request.steps && !decodes) running.tasks_to_come = false;
}

void WorkerJobs::note_end(RunningJob& running, const TaskEntry& entry, TaskResult result,
                          wire::ClockSpan called, double waited,
                          std::unique_ptr<DeviceMark> began) {
  wire::TaskDone done{.epoch = entry.epoch,
                      .job = entry.command.job,
                      .task = entry.command.task,
                      .blobs = std::move(result.blobs),
                      .warnings = std::move(result.warnings),
                      .ran = called,
                      .waits = running.job->waits().take_spans(),
                      .timestep = result.timestep};
  const auto kind = entry.command.kind;
  if (!ends_) {
    running.times->add(kind, seconds_of(called), waited);
    return tools_.send(std::move(done));
  }
  ends_->add(
      {.epoch = entry.epoch,
       .ran = {std::move(began), tools_.clock->mark()},
       .waits = running.job->waits().take_device_spans(),
       .tell =
           [this, kind, done = std::move(done), times = running.times](const RanAt& at) mutable {
             double waited = 0;
             for (const auto& wait : at.waits)
               waited += seconds_of(wait);
             times->add(kind, seconds_of(at.ran), waited);
             done.ran = at.ran;
             done.waits = at.waits;
             tools_.progress.tick();
             tools_.send(std::move(done));
           },
       .fail =
           [this, entry](const std::exception& error) {
             if (tools_.retire_after(error)) return;
             tools_.send(failed(entry.epoch, entry.command.job, entry.command.task, error));
           }});
}

void WorkerJobs::meet_not_finite(std::uint64_t epoch, std::uint64_t job,
                                 const std::string& sentence) {
  const std::runtime_error error(sentence);
  if (!tools_.progress.watched(job)) throw error;
  auto told = failed(epoch, job, task_, error);
  told.goes_on = true;
  tools_.send(std::move(told));
}

void WorkerJobs::report_failure(std::uint64_t epoch, std::uint64_t job,
                                std::optional<std::uint32_t> task, const std::exception& error) {
  if (tools_.retire_after(error)) return;
  broken_epochs_.insert(epoch);
  tools_.send(failed(epoch, job, task, error));
}

// Beginning of jobs.

at::Tensor WorkerJobs::fetch_init_latents(const wire::BeginJob& begin,
                                          const spec::ModelSpec& spec) {
  const auto& request = begin.request;
  if (request.init_latents_blob == 0 || begin.first_step > 0 || !has_latents(begin)) return {};
  const auto bytes = fetch_input(begin.epoch, "init latents", request.init_latents_blob,
                                 request.init_latents_bytes);
  const auto size = latent_size(spec, request);
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  auto latents =
      at::empty({pictures, spec.transformer.in_channels, size.latent_height, size.latent_width});
  if (latents.nbytes() != bytes->size()) {
    throw std::invalid_argument("[actor] init latents have " + std::to_string(bytes->size()) +
                                " bytes, " + std::to_string(latents.nbytes()) + " are needed");
  }
  std::copy(bytes->begin(), bytes->end(), static_cast<char*>(latents.data_ptr()));
  return latents;
}

at::Tensor WorkerJobs::fetch_boundary(const wire::BeginJob& begin, const spec::ModelSpec& spec) {
  if (begin.first_step == 0 || !has_latents(begin)) return {};
  const auto size = latent_size(spec, begin.request);
  const BoundaryShape shape{.channels = spec.transformer.in_channels,
                            .latent_height = size.latent_height,
                            .latent_width = size.latent_width,
                            .patch_size = spec.transformer.patch_size};
  const auto tick = tick_in(begin.epoch);
  return assemble_boundary(begin, shape, [this, tick](const wire::BlobRef& piece) {
    tick();
    return tools_.fetch_blob(piece.id, piece.bytes, kBoundaryDeadline, tick);
  });
}

JobInputs WorkerJobs::fetch_inputs(const wire::BeginJob& begin) {
  const auto& spec = stages_.at(begin.deployment)->spec();
  JobInputs inputs{fetch_init_latents(begin, spec), fetch_boundary(begin, spec)};
  const auto& request = begin.request;
  const bool beside_mask = spec.inputs.beside_mask();
  if ((needs_image(begin, spec) || beside_mask) && begin.vae.degree > 0) {
    inputs.init_image =
        fetch_input(begin.epoch, "init image", request.init_image_blob, request.init_image_bytes);
    // Who helps to encode what a mask leaves needs it, too.
    if (request.mask_image_bytes > 0 && (begin.vae.rank == 0 || beside_mask))
      inputs.mask_image =
          fetch_input(begin.epoch, "mask image", request.mask_image_blob, request.mask_image_bytes);
  }
  if (spec.inputs.beside == spec::BesideLatents::control_picture && begin.vae.degree > 0) {
    const auto& image = request.control_images.at(0);
    inputs.control_image = fetch_input(begin.epoch, "control image", image.blob, image.bytes);
  }
  const auto fetch = [&](const wire::SentPicture& image) {
    return fetch_input(begin.epoch, "image", image.blob, image.bytes);
  };
  const bool is_frame = spec.inputs.images == spec::PictureRole::first_frame;
  if (!is_frame && ((begin.vae.degree > 0 && begin.vae.rank == 0) || sees_images(spec, begin)))
    for (const auto& image : request.images)
      inputs.images.push_back(fetch(image));
  // What a job that is taken up again begins with has the frames in it, but not what is beside it.
  const bool beside = spec.inputs.beside == spec::BesideLatents::given_frames;
  if (begin.vae.degree > 0 && (begin.first_step == 0 || beside) && is_frame &&
      !request.images.empty()) {
    inputs.frames.first = fetch(request.images.front());
    if (request.last_image.bytes > 0) inputs.frames.last = fetch(request.last_image);
  }
  for (std::size_t i = 0; i < spec.controlnets.size(); ++i) {
    const auto& image = request.control_images.at(i);
    inputs.control_images.push_back(
        fetch_input(begin.epoch, "control image", image.blob, image.bytes));
  }
  if (!request.prompt_embeds.empty() && begin.caption_rank == begin.caption_root)
    inputs.prompt_embeds = fetch_input(begin.epoch, "prompt embeds", request.prompt_embeds_blob,
                                       request.prompt_embeds_bytes);
  return inputs;
}

std::function<void()> WorkerJobs::tick_in(std::uint64_t epoch) const {
  return [this, epoch] { tools_.progress.tick_in(epoch); };
}

control::BlobBytes WorkerJobs::fetch_input(std::uint64_t epoch, const std::string& what,
                                           control::BlobId id, std::uint64_t bytes) {
  auto blob = tools_.fetch_blob(id, bytes, tools_.transfer_deadline, tick_in(epoch));
  if (!blob) throw std::runtime_error("[actor] " + what + " did not arrive: " + blob.failure.what);
  return std::move(blob.bytes);
}

void WorkerJobs::begin(const wire::BeginJob& begin) {
  if (tools_.progress.ended(begin.epoch)) return;
  auto& begun = begun_[begin.epoch];
  if (!begun.insert(begin.job).second) return;
  if (begun.size() > WorkProgress::kRemembered) {
    // A job that still runs is not forgotten: it would begin anew if its message came again.
    const auto over = std::ranges::find_if(
        begun, [&](std::uint64_t job) { return job != begin.job && !jobs_.contains(job); });
    if (over != begun.end()) begun.erase(over);
  }
  try {
    const auto stage = stages_.find(begin.deployment);
    if (stage == stages_.end()) {
      throw std::logic_error("[actor] deployment " + std::to_string(begin.deployment) +
                             " is not loaded");
    }
    stage->second->keep_encoders(begin.keep_encoders);
    reset_peak_memory();
    RunningJob running;
    running.counters_before = tools_.groups.counters(begin.epoch);
    running.sent_before = tools_.groups.sent_by_group(begin.epoch);
    tools_.post([before = running.control_before](control::Connection& connection) {
      *before = connection.counters();
    });
    const JobTools tools{*stage->second,
                         tools_.groups,
                         tools_.progress,
                         tools_.blobs,
                         tools_.transfer_deadline,
                         tools_.cuda_graphs,
                         tools_.clock,
                         [this, epoch = begin.epoch, job = begin.job](const std::string& sentence) {
                           meet_not_finite(epoch, job, sentence);
                         }};
    rehearse_once(begin, tools);
    running.job = std::make_unique<StageJob>(begin, tools, fetch_inputs(begin));
    running.whole_step = running.newest_step = begin.first_step - 1;
    jobs_[begin.job] = std::move(running);
  } catch (const std::exception& error) {
    report_failure(begin.epoch, begin.job, std::nullopt, error);
  }
}

void WorkerJobs::rehearse_once(const wire::BeginJob& begin, const JobTools& tools) {
  if (!tools_.rehearses) return;
  const auto key = rehearsal_key(begin, tools.stage.spec());
  forget_after_flush();
  if (tools.stage.rehearsed(key)) return;
  note_event(WorkEvent::rehearses, begin.job);
  const auto once = [&] {
    rehearse(begin, tools, [&](bool whole) {
      note_event(whole ? WorkEvent::rehearses_whole : WorkEvent::rehearses_patches, begin.job);
    });
  };
  once();
  // What the rehearsal's first steps had left went with the flush, so they are rehearsed again; if
  // the memory does not suffice even so, it may for the job.
  if (forget_after_flush()) {
    once();
    forget_after_flush();
  }
  tools.stage.note_rehearsed(key);
  note_event(WorkEvent::rehearsed, begin.job);
}

bool WorkerJobs::forget_after_flush() {
  const auto flushes = tools_.cache_flushes();
  if (std::exchange(cache_flushes_, flushes) == flushes) return false;
  for (const auto& [id, stage] : stages_)
    stage->forget_rehearsed();
  return true;
}

// End of jobs.

void WorkerJobs::end_epoch(std::uint64_t epoch) {
  std::erase_if(jobs_, [&](const auto& entry) { return entry.second.job->begin().epoch == epoch; });
  begun_.erase(epoch);
  broken_epochs_.erase(epoch);
}

void WorkerJobs::tell_why_plain(const GraphUse& use) {
  if (use.why_plain.empty() || !told_why_plain_.insert(use.why_plain).second) return;
  std::fprintf(stderr, "CUDA graphs are not used everywhere: %s\n", use.why_plain.c_str());
}

void WorkerJobs::end(const wire::Header& header, const wire::EndJob& end) {
  wire::ActorJobStats stats;
  auto control_before = std::make_shared<control::Counters>();
  if (const auto found = jobs_.find(end.job); found != jobs_.end()) {
    auto& running = found->second;
    auto& job = *running.job;
    const auto& begin = job.begin();
    running.times->tell(stats);
    stats.controller_wait_seconds = running.controller_wait_seconds;
    control_before = running.control_before;
    const auto now = tools_.groups.counters(begin.epoch);
    stats.tensor_bytes_sent = now.bytes_sent - running.counters_before.bytes_sent;
    stats.tensor_bytes_received = now.bytes_received - running.counters_before.bytes_received;
    for (const auto& [id, sent] : tools_.groups.sent_by_group(begin.epoch)) {
      const auto bytes = sent - running.sent_before[id];
      if (bytes > 0) stats.sent_by_group[id] = bytes;
    }
    stats.weight_bytes = stages_.at(begin.deployment)->weight_bytes();
    stats.encoder_bytes = stages_.at(begin.deployment)->encoder_bytes();
    stats.kv_bytes = static_cast<std::uint64_t>(job.network().bytes());
    stats.sent_by_layer = job.network().sent_by_layer();
    if (tools_.cuda_graphs) {
      const auto use = job.network().graph_use();
      stats.graphs = {true, use.recorded, use.replayed, use.why_plain};
      tell_why_plain(use);
    }
    auto cache = job.step().cache_use();
    stats.cache_calls = static_cast<std::uint64_t>(cache.calls) * cache.skipped.size();
    stats.cache_skips = std::move(cache.skipped_by_step);
    stats.prompts_encoded = job.text().use().encoded;
    stats.prompts_from_cache = job.text().use().from_cache;
    stats.peak_memory_bytes = peak_memory_bytes();
    jobs_.erase(found);
  }
  tools_.post([header, stats, control_before](control::Connection& connection) mutable {
    stats.control_bytes_sent = connection.counters().bytes_sent - control_before->bytes_sent;
    stats.control_bytes_received =
        connection.counters().bytes_received - control_before->bytes_received;
    connection.reply(header, stats);
  });
}

}  // namespace troupe::actors
