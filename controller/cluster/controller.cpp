#include "controller/cluster/controller.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <stdexcept>

#include "transport/control/blob_endpoint.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {
namespace {

constexpr std::size_t kKeptJobs = 256;
constexpr std::chrono::milliseconds kStopDeadline{1500};

}  // namespace

Controller::Controller(boost::asio::io_context& io, const ClusterOptions& options)
    : io_(io),
      options_(options),
      token_(std::to_string(control::random_incarnation()) +
             std::to_string(control::random_incarnation())),
      members_(token_),
      table_(options.max_queued_jobs, kKeptJobs),
      supervision_timer_(io),
      stop_timer_(io) {
  if (options_.actors < 1)
    throw std::runtime_error("[cluster] actors is " + std::to_string(options_.actors) +
                             ": at least 1 is needed");
  if (options_.device != "cpu" && options_.device != "cuda") {
    throw std::runtime_error("[cluster] device is \"" + options_.device + "\": cpu or cuda");
  }
  if (options_.actor_program.empty()) options_.actor_program = find_actor_program();
  open_endpoints();
  make_rooms();
  agent_ = std::make_unique<NodeAgent>(
      io_, options_.actor_program, options_.log_folder,
      [this](ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
        actor_exited(id, incarnation, cause);
      });
  for (int i = 0; i < options_.actors; ++i) {
    const std::string device = options_.device == "cpu" ? "cpu" : "cuda:" + std::to_string(i);
    spawn(members_.add(control::host_name(), device).id);
  }
  supervise();
}

Controller::~Controller() {
  for (const auto peer : server_->peer_ids())
    server_->drop(peer, "the cluster has stopped");
}

double Controller::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Controller::open_endpoints() {
  if (options_.listen.empty()) folder_.emplace();
  control::ServerOptions server;
  server.endpoint = options_.listen.empty() ? folder_->endpoint("control.sock") : options_.listen;
  server.software = "troupe " TROUPE_VERSION;
  server.insecure = options_.insecure;
  server.socket.context = control::make_context();
  // The blob channel of a tcp controller is at the next port; where port 0 was asked for, look for
  // a free pair.
  for (int attempt = 0;; ++attempt) {
    server_ = std::make_unique<control::Server>(io_, server);
    socket_file_ = SocketFile(server_->endpoint());
    auto blobs = server;
    blobs.endpoint = control::blob_endpoint_of(server_->endpoint());
    try {
      blob_server_ = std::make_unique<control::BlobServer>(io_, blobs, blobs_);
      blob_socket_file_ = SocketFile(blob_server_->endpoint());
      break;
    } catch (const std::runtime_error&) {
      if (!server.endpoint.ends_with(":0") || attempt == 20) throw;
    }
  }
  server_->on_connect([this](const control::PeerInfo& peer) { return on_connect(peer); });
  blob_server_->admit([this](const control::PeerInfo& peer) { return on_blob_connect(peer); });
  server_->on_ready([this](control::PeerId peer) {
    if (!members_.by_peer(peer)) return;
    check_ready();
    runner_->start_queued();
  });
  server_->on_message(
      [this](control::PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
        on_message(peer, header, payload);
      });
  server_->on_lost([this](control::PeerId peer, const std::string& why) { on_lost(peer, why); });
  // Nothing is sent a second time: what is missing may have been the end of a task.
  server_->on_gap([this](control::PeerId peer, std::uint64_t missing) {
    const std::string why = std::to_string(missing) + " of its messages never arrived";
    server_->drop(peer, why);
    on_lost(peer, why);
  });
}

void Controller::make_rooms() {
  deployments_ = std::make_unique<Deployments>(
      *server_, members_,
      Deployments::Events{
          .on_free = [this] { boost::asio::post(io_, [this] { runner_->start_queued(); }); },
          .on_stuck =
              [this](ActorId id) { kill_actor(id, "it did not answer the end of its epoch"); }});
  runner_ = std::make_unique<jobs::JobRunner>(jobs::JobRunner::Tools{
      .io = io_,
      .server = *server_,
      .blob_server = *blob_server_,
      .blobs = blobs_,
      .members = members_,
      .deployments = *deployments_,
      .table = table_,
      .now = [this] { return now(); },
      .on_progress = [this](const jobs::JobEntry& job,
                            wire::JobProgress progress) { gateway_->tell_progress(job, progress); },
      .on_finished = [this](const jobs::JobEntry& job) { gateway_->tell_finished(job); }});
  gateway::ClusterFacts facts{.version = TROUPE_VERSION,
                              .host = control::host_name(),
                              .pid = static_cast<std::uint32_t>(getpid()),
                              .endpoint = server_->endpoint(),
                              .model = options_.model,
                              .device = options_.device,
                              .started = now()};
  gateway_ = std::make_unique<gateway::Gateway>(
      facts, gateway::Gateway::Tools{io_, *server_, *blob_server_, blobs_, members_, *deployments_,
                                     table_, *runner_, [this] { return now(); },
                                     [this] {
                                       if (stop_asked_) boost::asio::post(io_, stop_asked_);
                                     }});
}

void Controller::spawn(ActorId id) {
  const auto incarnation = control::random_incarnation();
  kill_reasons_.erase(id);
  spawned_at_[id] = control::Clock::now();
  const Actor& actor = members_.at(id);
  const auto pid = agent_->spawn({.id = id,
                                  .incarnation = incarnation,
                                  .control_endpoint = server_->endpoint(),
                                  .blob_endpoint = blob_server_->endpoint(),
                                  .device = actor.device,
                                  .threads = options_.threads_per_actor,
                                  .token = token_});
  members_.spawned(id, incarnation, pid);
}

std::optional<std::string> Controller::on_connect(const control::PeerInfo& peer) {
  if (stopping_) return "the cluster is stopping";
  if (peer.hello.role == "client") return std::nullopt;
  if (peer.hello.role != "actor")
    return "role \"" + peer.hello.role + "\" is not known here: client or actor";
  return members_.hello(peer);
}

std::optional<std::string> Controller::on_blob_connect(const control::PeerInfo& peer) const {
  if (stopping_) return "the cluster is stopping";
  // An actor's control link may come a moment later.
  if (peer.hello.role == "actor") return members_.stranger(peer);
  if (!server_->knows(peer.incarnation))
    return "no client of this controller: blobs are for those who have a control link";
  return std::nullopt;
}

void Controller::on_message(control::PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload) {
  const Actor* actor = members_.by_peer(peer);
  if (!actor) {
    if (stopping_ && header.kind == wire::Kind::submit_job) {
      server_->reply(peer, header,
                     wire::Failure{wire::FailureCode::refused, "the cluster is stopping"});
      return;
    }
    gateway_->on_message(peer, header, payload);
    return;
  }
  switch (header.kind) {
    case wire::Kind::task_done:
      return runner_->task_done(actor->id, wire::decode<wire::TaskDone>(payload));
    case wire::Kind::task_failed:
      return runner_->task_failed(actor->id, wire::decode<wire::TaskFailed>(payload));
    default:
      return;
  }
}

void Controller::on_ready(std::function<void(std::optional<std::string>)> handler) {
  if (start_failure_ || stopping_) {
    handler(start_failure_.value_or("the cluster was stopped"));
    return;
  }
  ready_handler_ = std::move(handler);
  check_ready();
}

void Controller::check_ready() {
  if (ready_handler_ && members_.ready_count() == members_.all().size()) {
    std::exchange(ready_handler_, nullptr)(std::nullopt);
  }
}

void Controller::cannot_start(const std::string& why) {
  gateway_->note_failure(why);
  start_failure_ = why;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why);
  runner_->fail_unplaceable(why);
}

void Controller::stop(const wire::Failure& why, std::function<void()> stopped) {
  if (stopping_) return;
  gateway_->close("the cluster is stopping");
  runner_->fail_all(why);
  stopping_ = true;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why.what);
  stopped_ = std::move(stopped);
  supervision_timer_.cancel();
  for (const auto& [id, actor] : members_.all()) {
    if (actor.state == ActorState::ready)
      server_->send(actor.peer, wire::Shutdown{});
    else
      agent_->kill(id);
  }
  if (agent_->running() == 0) {
    boost::asio::post(io_, std::exchange(stopped_, nullptr));
    return;
  }
  stop_timer_.expires_after(kStopDeadline);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& [id, actor] : members_.all())
      agent_->kill(id);
  });
}

}  // namespace troupe::cluster
