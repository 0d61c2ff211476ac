#include "actors/actor_process.h"

#include <boost/asio/post.hpp>
#include <cstdio>
#include <future>
#include <stdexcept>

#include "actors/device.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::actors {

ActorProcess::ActorProcess(ActorOptions options)
    : options_(std::move(options)), timer_(io_), device_(open_device(options_.device)) {
  make_current(device_);
  open_doors();
  connect();
}

ActorProcess::~ActorProcess() {
  mailbox_.close();
  worker_.reset();
}

void ActorProcess::open_doors() {
  for (const auto backend : tensor::available_backends()) {
    if ((backend == tensor::Backend::nccl) != device_.is_cuda()) continue;
    tensor::DeviceOptions door;
    door.token = options_.token;
    door.cuda_device = device_.has_index() ? device_.index() : 0;
    doors_.emplace(backend, tensor::make_device(backend, door));
  }
}

void ActorProcess::connect() {
  control::ConnectionOptions options;
  options.endpoint = options_.control_endpoint;
  options.incarnation = options_.incarnation;
  options.hello.role = "actor";
  options.hello.name = "actor " + std::to_string(options_.id);
  options.hello.software = "troupe " TROUPE_VERSION;
  options.hello.attributes["id"] = std::to_string(options_.id);
  options.hello.attributes["device"] = options_.device;
  options.hello.attributes["token"] = options_.token;
  for (const auto& [backend, door] : doors_) {
    options.hello.attributes["address." + tensor::to_string(backend)] = door->address();
  }
  options.socket.context = control::make_context();
  auto blob_options = options;
  blob_options.endpoint = options_.blob_endpoint;
  connection_ = std::make_unique<control::Connection>(io_, options);
  blob_connection_ = std::make_unique<control::BlobConnection>(io_, blob_options, blobs_);
  connection_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
    on_message(header, payload);
  });
  connection_->on_gap([this](std::uint64_t missing) {
    stop(3, std::to_string(missing) + " messages of the controller never came");
  });
  connection_->on_lost([this](const std::string& why) { stop(3, "controller lost: " + why); });
}

int ActorProcess::run() {
  blob_connection_->on_lost(
      [this](const std::string& why) { stop(3, "blob channel lost: " + why); });
  blob_connection_->start(
      {}, [this](const wire::Failure& failure) { stop(2, "no blob channel: " + failure.what); });
  connection_->start(
      [this](const wire::Welcome&) {
        worker_ = std::make_unique<Worker>(WorkerTools{
            .device = device_,
            .doors = doors_,
            .groups = groups_,
            .progress = progress_,
            .mailbox = mailbox_,
            .blobs = blobs_,
            .fetch_blob = [this](auto id, auto bytes,
                                 auto deadline) { return fetch_blob(id, bytes, deadline); },
            .post =
                [this](std::function<void(control::Connection&)> action) {
                  boost::asio::post(io_, [this, action = std::move(action)] {
                    if (!stopping_) action(*connection_);
                  });
                },
            .transfer_deadline = options_.transfer_deadline});
        tick();
      },
      [this](const wire::Failure& failure) { stop(2, failure.what); });
  io_.run();
  return exit_code_;
}

void ActorProcess::tick() {
  connection_->set_progress(progress_.count());
  timer_.expires_after(std::chrono::milliseconds(100));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !stopping_) tick();
  });
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
      mailbox_.put({header, wire::decode<wire::EndJob>(payload)});
      return;
    case wire::Kind::unload: {
      const auto unload = wire::decode<wire::Unload>(payload);
      progress_.unload(unload.deployment);
      mailbox_.put({header, unload});
      return;
    }
    case wire::Kind::abort_epoch: {
      auto abort = wire::decode<wire::AbortEpoch>(payload);
      progress_.end_epoch(abort.epoch);
      groups_.abort(abort.epoch, abort.why);
      mailbox_.put({header, std::move(abort)});
      return;
    }
    case wire::Kind::shutdown:
      stop(0, "shutdown");
      return;
    default:
      if (header.is_request()) {
        connection_->reply(header, wire::Failure{wire::FailureCode::protocol,
                                                 "[actor] message kind " +
                                                     std::to_string(static_cast<int>(header.kind)) +
                                                     " is not for an actor"});
      }
  }
}

control::BlobResult ActorProcess::fetch_blob(std::uint64_t id, std::uint64_t bytes,
                                             std::chrono::milliseconds deadline) {
  auto promise = std::make_shared<std::promise<control::BlobResult>>();
  auto result = promise->get_future();
  boost::asio::post(io_, [this, id, bytes, deadline, promise] {
    blob_connection_->fetch(id, bytes, deadline, [promise](control::BlobResult blob) {
      promise->set_value(std::move(blob));
    });
  });
  // The fetch answers within its deadline; the second more is for a control thread that is gone.
  if (result.wait_for(deadline + std::chrono::seconds(1)) != std::future_status::ready) {
    return {nullptr,
            {wire::FailureCode::timeout, "blob " + std::to_string(id) + " did not arrive in time"}};
  }
  return result.get();
}

void ActorProcess::stop(int exit_code, const std::string& why) {
  if (stopping_) return;
  stopping_ = true;
  exit_code_ = exit_code;
  if (exit_code != 0) std::fprintf(stderr, "troupe-actor %u: %s\n", options_.id, why.c_str());
  timer_.cancel();
  progress_.end_all();
  mailbox_.close();
  connection_->close(why);
  blob_connection_->close();
  io_.stop();
}

}  // namespace troupe::actors
