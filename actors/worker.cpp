#include "actors/worker.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <new>

#include "actors/device.h"
#include "actors/device_error.h"
#include "actors/memory.h"
#include "transport/wire/done.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

double seconds_of(const wire::ClockSpan& span) {
  return static_cast<double>(span.end_ns - span.begin_ns) / 1e9;
}

/// The first line of an exception's text: c10's carry a stack trace behind it.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

wire::Failure to_failure(const std::exception& error) {
  const std::string text = first_line(error);
  const bool memory =
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      (text.find("alloc") != std::string::npos && text.find("memory") != std::string::npos);
  if (memory) return {wire::FailureCode::out_of_memory, text};
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    return {wire::FailureCode::bad_request, text};
  return {wire::FailureCode::internal, text};
}

/// True when the error came from a peer or the end of the epoch, so that it names no cause of its
/// own.
bool is_collateral(const std::exception& error) {
  return dynamic_cast<const tensor::TransferError*>(&error) != nullptr ||
         dynamic_cast<const EpochEnded*>(&error) != nullptr;
}

/// Of a task, or of the job's beginning.
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

Worker::Worker(WorkerTools tools) : tools_(std::move(tools)) {
  if (tools_.clock) {
    ends_ = std::make_unique<TaskEnds>(
        TaskEnds::Tools{.begin = [this] { make_current(tools_.device); },
                        .ended = [this](auto epoch) { return tools_.progress.ended(epoch); },
                        .now_ns = monotonic_ns,
                        .waits = [this] { tools_.progress.tick(); },
                        .patience = tools_.transfer_deadline});
  }
  thread_ = std::thread([this] { loop(); });
}

Worker::~Worker() {
  thread_.join();
}

void Worker::loop() {
  const c10::InferenceMode inference;
  make_current(tools_.device);
  for (;;) {
    const auto before = Clock::now();
    auto letter = tools_.mailbox.take();
    if (!letter) return;
    const double waited = seconds_between(before, Clock::now());
    for (auto& [id, running] : jobs_) {
      if (running.tasks_to_come) running.stats.controller_wait_seconds += waited;
    }
    tools_.view.begin(describe(*letter));
    handle(*letter);
    tools_.view.end();
    tools_.progress.tick();
  }
}

void Worker::handle(const Letter& letter) {
  const auto& header = letter.header;
  try {
    std::visit(
        [&](const auto& content) {
          using Content = std::decay_t<decltype(content)>;
          if constexpr (std::is_same_v<Content, wire::LoadStage>) load(header, content);
          if constexpr (std::is_same_v<Content, wire::ConnectGroups>) connect(header, content);
          if constexpr (std::is_same_v<Content, wire::BeginJob>) begin(content);
          if constexpr (std::is_same_v<Content, wire::EndJob>) end(header, content);
          if constexpr (std::is_same_v<Content, wire::Unload>) unload(header, content);
          if constexpr (std::is_same_v<Content, wire::AbortEpoch>) end_epoch(header, content);
          if constexpr (std::is_same_v<Content, TaskEntry>) run(content);
          if constexpr (std::is_same_v<Content, std::shared_ptr<Inspection>>) inspect(*content);
        },
        letter.content);
  } catch (const std::exception& error) {
    if (retire_after(error)) return;
    if (header.is_request()) reply(header, to_failure(error));
  }
}

bool Worker::retire_after(const std::exception& error) {
  const auto why = lost_device(error, tools_.device);
  if (!why) return false;
  tools_.retire(kLostDevice + *why);
  return true;
}

void Worker::load(const wire::Header& header, const wire::LoadStage& load) {
  if (const auto kept = stages_.find(load.deployment);
      kept != stages_.end() && wire::encode(kept->second->load()) == wire::encode(load))
    return reply(header, wire::StageLoaded{kept->second->weight_bytes(), 0});
  const auto start = Clock::now();
  const auto tick = [&] { tools_.progress.tick_loading(load.deployment); };
  tick();
  auto stage = std::make_unique<Stage>(load, tools_.device, tick);
  const auto bytes = stage->weight_bytes();
  stages_[load.deployment] = std::move(stage);
  return_free_memory();
  reply(header, wire::StageLoaded{bytes, seconds_between(start, Clock::now())});
}

void Worker::connect(const wire::Header& header, const wire::ConnectGroups& connect) {
  const auto start = Clock::now();
  const auto deadline = tensor::within(std::chrono::milliseconds(connect.deadline_ms));
  tools_.progress.tick_in(connect.epoch);
  if (connected_epochs_.contains(connect.epoch)) return reply(header, wire::GroupsConnected{});
  for (const auto& group : connect.groups) {
    const auto door = tools_.doors.find(tensor::backend_from(group.backend));
    if (door == tools_.doors.end())
      throw std::runtime_error("[actor] no door to tensor backend " + group.backend);
    const auto name = group.name + epoch_suffix(connect.epoch);
    tools_.groups.add(connect.epoch, group.id,
                      door->second->connect(name, group.rank, group.addresses, deadline));
    tools_.progress.tick_in(connect.epoch);
  }
  connected_epochs_.insert(connect.epoch);
  reply(header, wire::GroupsConnected{seconds_between(start, Clock::now())});
}

TaskResult Worker::run_task(RunningJob& running, const wire::Command& command) {
  // A delay shows no progress, as what hangs shows none; the end of its epoch ends it.
  const auto epoch = running.job->begin().epoch;
  const bool poisons = tools_.view.meet_faults(command.kind == wire::TaskKind::micro_step, [&] {
    if (tools_.progress.ended(epoch))
      throw EpochEnded("[actor] epoch " + std::to_string(epoch) + " has ended");
  });
  if (poisons) running.job->poison();
  TaskResult result;
  switch (command.kind) {
    case wire::TaskKind::encode_text:
      result = running.job->encode_text();
      break;
    case wire::TaskKind::micro_step:
      result = running.job->micro_step({command.step, command.patch, command.part});
      break;
    case wire::TaskKind::decode:
      result = running.job->decode(command.part);
      break;
  }
  const auto& begin = running.job->begin();
  const auto micro_steps = static_cast<int>(begin.micro_steps.size());
  const auto parts = static_cast<int>(begin.batch_parts.size());
  const bool last_step =
      command.kind == wire::TaskKind::micro_step && command.step + 1 == begin.request.steps &&
      (command.patch < 0 ? command.part + 1 == parts : command.patch + 1 == micro_steps);
  const bool last_decode =
      command.kind == wire::TaskKind::decode &&
      (begin.vae.degree == 0 || command.part + 1 == std::ssize(begin.decode_parts));
  if (last_decode || (last_step && begin.vae.degree == 0 && begin.row_rank < 0))
    running.tasks_to_come = false;
  return result;
}

void Worker::JobTimes::add(wire::TaskKind kind, double took, double waited) {
  std::lock_guard lock(mutex);
  waits += waited;
  busy += took - waited;
  switch (kind) {
    case wire::TaskKind::encode_text:
      text += took;
      break;
    case wire::TaskKind::micro_step:
      denoise += took;
      break;
    case wire::TaskKind::decode:
      decode += took;
      break;
  }
}

void Worker::JobTimes::tell(wire::ActorJobStats& stats) {
  std::lock_guard lock(mutex);
  stats.busy_seconds = busy;
  stats.peer_wait_seconds = waits;
  stats.text_seconds = text;
  stats.denoise_seconds = denoise;
  stats.decode_seconds = decode;
}

void Worker::post_receives_ahead(const TaskEntry& task) {
  // Where jobs are rehearsed micro-steps need nothing new. Other tasks may have to wait for the
  // device to come to rest, which a receive that waits there for a later task's tensor would
  // prevent.
  if (tools_.rehearses && task.command.kind != wire::TaskKind::micro_step) return;
  const auto past = tools_.rehearses ? Mailbox::Past::micro_steps : Mailbox::Past::tasks;
  // A receive's group carries nothing else to this end, so it may go ahead of tasks.
  for (const auto& receive : tools_.mailbox.take_receives(task.epoch, past))
    post_receive(receive);
}

void Worker::run(const TaskEntry& entry) {
  const auto& command = entry.command;
  if (tools_.progress.ended(entry.epoch) || broken_epochs_.contains(entry.epoch)) return;
  if (command.receive) return post_receive(entry);
  const auto running = jobs_.find(command.job);
  try {
    post_receives_ahead(entry);
    if (broken_epochs_.contains(entry.epoch)) return;
    if (running == jobs_.end()) {
      if (is_over(entry.epoch, command.job)) return;
      throw std::logic_error("[actor] a task came for job " + std::to_string(command.job) +
                             ", which has not begun here");
    }
    if (!running->second.tasks.insert(command.task).second) return;
    const double waited_before = running->second.job->peer_wait_seconds();
    auto mark = tools_.clock ? tools_.clock->mark() : nullptr;
    const auto began = monotonic_ns();
    auto result = run_task(running->second, command);
    const auto ended = monotonic_ns();
    note_task(running->second, command);
    note_end(running->second, entry, std::move(result), {began, ended},
             running->second.job->peer_wait_seconds() - waited_before, std::move(mark));
  } catch (const std::exception& error) {
    report_failure(entry.epoch, command.job, command.task, error);
  }
}

void Worker::note_end(RunningJob& running, const TaskEntry& entry, TaskResult result,
                      wire::ClockSpan called, double waited, std::unique_ptr<DeviceMark> began) {
  wire::TaskDone done{.epoch = entry.epoch,
                      .job = entry.command.job,
                      .task = entry.command.task,
                      .blobs = std::move(result.blobs),
                      .warnings = std::move(result.warnings),
                      .ran = called,
                      .waits = running.job->take_waits()};
  const auto kind = entry.command.kind;
  if (!ends_) {
    running.times->add(kind, seconds_of(called), waited);
    return send(std::move(done));
  }
  ends_->add(
      {.epoch = entry.epoch,
       .ran = {std::move(began), tools_.clock->mark()},
       .waits = running.job->take_device_waits(),
       .tell =
           [this, kind, done = std::move(done), times = running.times](const RanAt& at) mutable {
             double waited = 0;
             for (const auto& wait : at.waits)
               waited += seconds_of(wait);
             times->add(kind, seconds_of(at.ran), waited);
             done.ran = at.ran;
             done.waits = at.waits;
             tools_.progress.tick();
             send(std::move(done));
           },
       .fail =
           [this, entry](const std::exception& error) {
             if (retire_after(error)) return;
             send(failed(entry.epoch, entry.command.job, entry.command.task, error));
           }});
}

void Worker::note_task(RunningJob& running, const wire::Command& command) {
  const auto& begin = running.job->begin();
  const auto text = describe(command);
  running.last_task = text.substr(text.find(' ', text.find(' ') + 1) + 1);
  if (command.kind != wire::TaskKind::micro_step) return;
  running.newest_step = command.step;
  const bool ends = command.patch < 0
                        ? command.part + 1 == static_cast<int>(begin.batch_parts.size())
                        : command.patch + 1 == static_cast<int>(begin.micro_steps.size());
  if (ends) running.whole_step = command.step;
}

void Worker::post_receive(const TaskEntry& entry) {
  const auto& command = entry.command;
  if (broken_epochs_.contains(entry.epoch)) return;
  try {
    const auto running = jobs_.find(command.job);
    if (running == jobs_.end()) {
      if (is_over(entry.epoch, command.job)) return;
      throw std::logic_error("[actor] a receive came for job " + std::to_string(command.job) +
                             ", which has not begun here");
    }
    if (!running->second.receives.insert(command.task).second) return;
    note_event(WorkEvent::posts_receive, command.job);
    running->second.job->post_receive({command.step, command.patch, command.part}, command.stage);
  } catch (const std::exception& error) {
    report_failure(entry.epoch, command.job, command.task, error);
  }
}

void Worker::report_failure(std::uint64_t epoch, std::uint64_t job,
                            std::optional<std::uint32_t> task, const std::exception& error) {
  if (retire_after(error)) return;
  broken_epochs_.insert(epoch);
  send(failed(epoch, job, task, error));
}

void Worker::end_epoch(const wire::Header& header, const wire::AbortEpoch& abort) {
  std::erase_if(jobs_,
                [&](const auto& entry) { return entry.second.job->begin().epoch == abort.epoch; });
  tools_.groups.remove(abort.epoch);
  connected_epochs_.erase(abort.epoch);
  begun_.erase(abort.epoch);
  broken_epochs_.erase(abort.epoch);
  reply(header, wire::Done{});
}

void Worker::unload(const wire::Header& header, const wire::Unload& unload) {
  stages_.erase(unload.deployment);
  return_free_memory();
  if (header.is_request()) reply(header, wire::Done{});
}

}  // namespace troupe::actors
