#include "actors/actor_process.h"

#include "actors/device.h"
#include "actors/probe.h"
#include "actors/stage/memory.h"
#include "base/xxh64.h"
#include "models/spec/model_plugin.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::actors {

ActorProcess::ActorProcess(ActorOptions options)
    : options_(std::move(options)),
      device_(open_device(options_.device)),
      rehearses_(options_.rehearses.value_or(device_.is_cuda())) {
  make_current(device_);
  open_tensor_devices();
  make_process();
}

ActorProcess::~ActorProcess() {
  mailbox_.close();
  worker_.reset();
}

void ActorProcess::open_tensor_devices() {
  for (const auto backend : tensor::available_backends()) {
    if ((backend == tensor::Backend::nccl) != device_.is_cuda()) continue;
    tensor::DeviceOptions options;
    options.token = options_.token;
    options.host = options_.tensor_host;
    options.cuda_device = device_.has_index() ? device_.index() : 0;
    tensor_devices_.emplace(backend, tensor::make_device(backend, options));
  }
}

void ActorProcess::make_process() {
  runtime::ProcessOptions process;
  process.program = "troupe-actor " + std::to_string(options_.id);
  process.control_endpoint = options_.control_endpoint;
  process.blob_endpoint = options_.blob_endpoint;
  process.incarnation = options_.incarnation;
  process.keys = options_.keys;
  process.hello.role = PeerRole::actor;
  process.hello.name = "actor " + std::to_string(options_.id);
  process.hello.software = "troupe " TROUPE_VERSION;
  process.hello.attributes["id"] = std::to_string(options_.id);
  process.hello.attributes["device"] = options_.device;
  process.hello.attributes["token"] = options_.token;
  for (const auto& file : spec::user_models().files())
    process.hello.attributes["model_plugin." + file.filename().string()] =
        contents_text({file, spec::network_half_of(file)});
  tell_memory(available_memory_bytes(device_), process.hello.attributes);
  if (auto gpu = device_name(device_); !gpu.empty())
    process.hello.attributes["gpu"] = std::move(gpu);
  process.hello.attributes["threads"] = std::to_string(options_.threads);
  if (options_.measures) tell_speed(device_, process.hello.attributes);
  for (const auto& [backend, device] : tensor_devices_)
    process.hello.attributes["address." + tensor::to_string(backend)] = device->address();
  process_ = std::make_unique<runtime::ControlThread>(std::move(process));
  inspect_ = std::make_unique<InspectLane>(process_->io(), process_->connection(), mailbox_, view_,
                                           rehearses_);
}

int ActorProcess::run() {
  return process_->run(
      {.on_ready = [this] { make_worker(); },
       .on_message = [this](const wire::Header& header,
                            std::span<const std::byte> payload) { on_message(header, payload); },
       .on_stop =
           [this] {
             progress_.end_all();
             mailbox_.close();
           },
       .progress = [this] { return progress_.count(); }});
}

void ActorProcess::make_worker() {
  worker_ = std::make_unique<Worker>(WorkerTools{
      .device = device_,
      .tensor_devices = tensor_devices_,
      .groups = groups_,
      .progress = progress_,
      .mailbox = mailbox_,
      .view = view_,
      .blobs = process_->blobs(),
      .fetch_blob =
          [this](auto id, auto bytes, auto deadline, const auto& tick) {
            return process_->fetch_blob(id, bytes, deadline, tick);
          },
      .post =
          [this](std::function<void(control::Connection&)> action) {
            process_->post(std::move(action));
          },
      .transfer_deadline = options_.transfer_deadline,
      .cuda_graphs = options_.cuda_graphs,
      .clock = options_.clock ? options_.clock : make_device_clock(device_),
      .rehearses = rehearses_,
      .retire =
          [this](const std::string& why) {
            process_->post([this, why](control::Connection&) { process_->stop(kDeviceLost, why); });
          },
      .cache_flushes = options_.cache_flushes ? options_.cache_flushes
                                              : [this] { return cache_flushes(device_); },
      .on_event = options_.on_event});
}

void ActorProcess::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  switch (header.kind) {
    case wire::Kind::run_tasks: {
      const auto tasks = wire::decode<wire::RunTasks>(payload);
      for (const auto& command : tasks.commands)
        mailbox_.put({header, TaskEntry{tasks.epoch, command}});
      return;
    }
    case wire::Kind::load_stage:
      mailbox_.put({header, wire::decode<wire::LoadStage>(payload)});
      return;
    case wire::Kind::connect_groups:
      mailbox_.put({header, wire::decode<wire::ConnectGroups>(payload)});
      return;
    case wire::Kind::begin_job:
      mailbox_.put({header, wire::decode<wire::BeginJob>(payload)});
      return;
    case wire::Kind::end_job:
      mailbox_.put_end(header, wire::decode<wire::EndJob>(payload));
      return;
    case wire::Kind::unload: {
      const auto unload = wire::decode<wire::Unload>(payload);
      if (!unload.encoders_alone) progress_.unload(unload.deployment);
      mailbox_.put({header, unload});
      return;
    }
    case wire::Kind::abort_epoch: {
      auto abort = wire::decode<wire::AbortEpoch>(payload);
      progress_.end_epoch(abort.epoch);
      groups_.abort(abort.epoch, abort.why);
      for (const auto& [backend, device] : tensor_devices_)
        device->give_up(epoch_suffix(abort.epoch));
      mailbox_.put({header, std::move(abort)});
      return;
    }
    case wire::Kind::control_job:
      progress_.watch(wire::decode<wire::ControlJob>(payload).job);
      return;
    default:
      if (inspect_->on_message(header, payload)) return;
      if (header.is_request()) {
        process_->connection().reply(
            header,
            wire::Failure{wire::FailureCode::protocol,
                          "[actor] " + wire::to_string(header.kind) + " is not for an actor"});
      }
  }
}

}  // namespace troupe::actors
