#include "actors/worker.h"

#include <c10/core/InferenceMode.h>

#include "actors/device.h"
#include "actors/stage/memory.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Worker::Worker(WorkerTools tools)
    : tools_(std::move(tools)),
      jobs_(tools_, stages_),
      inspection_(tools_, stages_, jobs_),
      thread_([this] { loop(); }) {}

Worker::~Worker() {
  thread_.join();
}

void Worker::loop() {
  const c10::InferenceMode inference;
  make_current(tools_.device);
  for (;;) {
    const auto start = Clock::now();
    const auto message = tools_.mailbox.take();
    if (!message) return;
    jobs_.note_idle(seconds_since(start));
    tools_.view.begin(describe(*message, [this](std::uint64_t job) { return jobs_.name_of(job); }));
    meet_hold(*message);
    handle(*message);
    tools_.view.end();
    tools_.progress.tick();
  }
}

void Worker::meet_hold(const Message& message) {
  const auto here = hold_point(message);
  // What is over is not computed, so that nothing is held before it.
  if (!here || is_over(message)) return;
  tools_.view.meet_hold(
      *here,
      [&] {
        tools_.progress.tick();
        return is_over(message);
      },
      [this](bool held) { tools_.send(wire::HoldChanged{held}); });
}

bool Worker::is_over(const Message& message) const {
  const auto& progress = tools_.progress;
  const auto& content = message.content;
  if (const auto* load = std::get_if<wire::LoadStage>(&content))
    return progress.unloaded(load->deployment);
  if (const auto* connect = std::get_if<wire::ConnectGroups>(&content))
    return progress.ended(connect->epoch);
  if (const auto* begin = std::get_if<wire::BeginJob>(&content))
    return progress.ended(begin->epoch);
  if (const auto* task = std::get_if<TaskEntry>(&content)) return jobs_.skips(task->epoch);
  const auto* end = std::get_if<wire::EndJob>(&content);
  const auto epoch = end ? jobs_.epoch_of(end->job) : std::nullopt;
  return progress.ended(epoch.value_or(0));  // of a job that is not here, when the process leaves
}

void Worker::handle(const Message& message) {
  const auto& header = message.header;
  try {
    std::visit(
        [&](const auto& content) {
          using Content = std::decay_t<decltype(content)>;
          if constexpr (std::is_same_v<Content, wire::LoadStage>) load(header, content);
          if constexpr (std::is_same_v<Content, wire::ConnectGroups>) connect(header, content);
          if constexpr (std::is_same_v<Content, wire::BeginJob>) jobs_.begin(content);
          if constexpr (std::is_same_v<Content, wire::EndJob>) jobs_.end(header, content);
          if constexpr (std::is_same_v<Content, wire::Unload>) unload(header, content);
          if constexpr (std::is_same_v<Content, wire::AbortEpoch>) end_epoch(header, content);
          if constexpr (std::is_same_v<Content, TaskEntry>) jobs_.run(content);
          if constexpr (std::is_same_v<Content, std::shared_ptr<Inspection>>)
            inspection_.answer(*content);
        },
        message.content);
  } catch (const std::exception& error) {
    if (tools_.retire_after(error)) return;
    if (header.is_request()) tools_.reply(header, to_failure(error));
  }
}

void Worker::load(const wire::Header& header, const wire::LoadStage& load) {
  if (const auto kept = stages_.find(load.deployment);
      kept != stages_.end() && wire::encode(kept->second->load()) == wire::encode(load))
    return tools_.reply(header, wire::StageLoaded{kept->second->weight_bytes(), 0});
  const auto start = Clock::now();
  const auto tick = [&] { tools_.progress.tick_loading(load.deployment); };
  tick();
  auto stage = std::make_unique<Stage>(load, tools_.device, tick);
  const auto bytes = stage->weight_bytes();
  stages_[load.deployment] = std::move(stage);
  return_free_memory();
  tools_.reply(header, wire::StageLoaded{bytes, seconds_since(start)});
}

void Worker::connect(const wire::Header& header, const wire::ConnectGroups& connect) {
  const auto start = Clock::now();
  const auto deadline = tensor::within(std::chrono::milliseconds(connect.deadline_ms));
  tools_.progress.tick_in(connect.epoch);
  if (connected_epochs_.contains(connect.epoch))
    return tools_.reply(header, wire::GroupsConnected{});
  for (const auto& group : connect.groups) {
    const auto device = tools_.tensor_devices.find(tensor::backend_from(group.backend));
    if (device == tools_.tensor_devices.end())
      throw std::runtime_error("[actor] tensor backend " + group.backend + " is not open here");
    const auto name = group.name + epoch_suffix(connect.epoch);
    tools_.groups.add(connect.epoch, group.id,
                      device->second->connect(name, group.rank, group.addresses, deadline));
    tools_.progress.tick_in(connect.epoch);
  }
  connected_epochs_.insert(connect.epoch);
  tools_.reply(header, wire::GroupsConnected{seconds_since(start)});
}

void Worker::end_epoch(const wire::Header& header, const wire::AbortEpoch& abort) {
  jobs_.end_epoch(abort.epoch);
  tools_.groups.remove(abort.epoch);
  connected_epochs_.erase(abort.epoch);
  tools_.reply(header, wire::Done{});
}

void Worker::unload(const wire::Header& header, const wire::Unload& unload) {
  const auto stage = stages_.find(unload.deployment);
  if (stage != stages_.end() && unload.encoders_alone) {
    stage->second->keep_encoders(false);
  } else if (stage != stages_.end()) {
    stages_.erase(stage);
  }
  return_free_memory();
  if (header.is_request()) tools_.reply(header, wire::Done{});
}

}  // namespace troupe::actors
