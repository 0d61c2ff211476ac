#include "controller/cluster/controller.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <stdexcept>
#include <thread>

#include "controller/gateway/metrics.h"
#include "controller/jobs/replan.h"
#include "transport/control/blob_endpoint.h"
#include "transport/control/log_line.h"
#include "transport/wire/actor_messages.h"

namespace troupe::cluster {
namespace {

constexpr std::size_t kKeptJobs = 256;
constexpr std::chrono::milliseconds kStopDeadline{1500};

journal::Calendar calendar_now() {
  const auto seconds = [](auto when) {
    return std::chrono::duration<double>(when.time_since_epoch()).count();
  };
  return {seconds(std::chrono::system_clock::now()) - seconds(control::Clock::now())};
}

}  // namespace

Controller::Controller(boost::asio::io_context& io, const ClusterOptions& options)
    : io_(io),
      options_(options),
      token_(std::to_string(control::random_incarnation()) +
             std::to_string(control::random_incarnation())),
      members_(token_),
      table_(options.max_queued_jobs, kKeptJobs),
      stop_timer_(io) {
  if (options_.actors < 1)
    throw std::runtime_error("[cluster] actors is " + std::to_string(options_.actors) +
                             ": at least 1 is needed");
  if (options_.device != "cpu" && options_.device != "cuda") {
    throw std::runtime_error("[cluster] device is \"" + options_.device + "\": cpu or cuda");
  }
  if (options_.actor_program.empty()) options_.actor_program = find_actor_program();
  open_journal();
  open_endpoints();
  make_rooms();
  make_desk();
  agent_ = std::make_unique<NodeAgent>(
      io_, options_.actor_program, options_.log_folder,
      [this](ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
        actor_exited(id, incarnation, cause);
      });
  hosts_ = std::make_unique<Hosts>(
      Hosts::Tools{
          .server = *server_,
          .members = members_,
          .own_host = control::host_name(),
          .device = options_.device,
          .spawn = [this](ActorId id) { supervisor_->spawn(id); },
          .on_exit = [this](ActorId id, std::uint64_t incarnation,
                            const ExitCause& cause) { actor_exited(id, incarnation, cause); },
          .note = [this](const std::string& text) { gateway_->note_failure(text); }},
      *agent_);
  outside_->use([this](ActorId id) -> Agent& { return hosts_->agent_of(id); });
  make_user_room();
  for (int i = 0; i < options_.actors; ++i) {
    const std::string device = options_.device == "cpu" ? "cpu" : "cuda:" + std::to_string(i);
    auto& place = members_.add(control::host_name(), device);
    place.memory_limit = options_.memory_limit;
    supervisor_->spawn(place.id);
  }
  supervisor_->watch();
  take_up_jobs();
}

Controller::~Controller() {
  for (const auto peer : server_->peer_ids())
    server_->drop(peer, "the cluster has stopped");
}

void Controller::open_journal() {
  if (options_.journal.empty()) return;
  store_ = std::make_unique<journal::SqliteStore>(options_.journal);
  past_ = store_->past();
}

void Controller::take_up_jobs() {
  if (!store_) return;
  const auto revival = journal::revive(
      store_->load(), past_, calendar_now(),
      [this](control::BlobBytes bytes) { return blobs_.add(std::move(bytes)); }, table_);
  writer_ =
      std::make_unique<journal::Writer>(io_, std::move(store_), [this](const std::string& what) {
        if (!options_.logs) control::log_line(what);
        gateway_->note_failure(what);
      });
  gateway_->take_up(revival, journal::cause_of(past_));
  runner_->expire();
}

void Controller::open_endpoints() {
  if (options_.listen.empty()) folder_.emplace();
  control::ServerOptions server;
  server.endpoint = options_.listen.empty() ? folder_->endpoint("control.sock") : options_.listen;
  server.software = "troupe " TROUPE_VERSION;
  server.insecure = options_.insecure;
  if (store_) server.attributes["journal"] = past_.id;
  server.socket.context = control::make_context();
  if (!options_.keys.empty() && !control::parse_endpoint(server.endpoint).ipc) {
    const control::KeyFolder keys(options_.keys);
    keys.clients();  // throws where nobody could come in
    guard_ = control::Guard::open(io_, server.socket.context, keys.server(),
                                  control::AllowList(keys.clients_file()));
    server.guard = guard_;
  }
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
    if (users_->actors().ready(peer)) return;
    if (hosts_->ready(peer)) {
      const auto info = server_->info(peer);
      if (const auto host = hosts_->name_of(peer); host && info) users_->host_joined(*host, *info);
      return;
    }
    const Actor* actor = members_.by_peer(peer);
    if (!actor) return;
    check_ready();
    desk_->actor_ready(actor->id);
    supervisor_->ready(actor->id);
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

std::string Controller::tensor_host() const {
  if (!options_.tensor_host.empty()) return options_.tensor_host;
  const auto listens = control::parse_endpoint(server_->endpoint());
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(listens.host, error);
  return listens.ipc || error || address.is_unspecified() ? "" : listens.host;
}

void Controller::make_rooms() {
  if (store_) {
    journal_ = std::make_unique<journal::Journal>(
        [this](journal::Change change, journal::Journal::Done done) {
          writer_->write(std::move(change), std::move(done));
        },
        [this](control::BlobId id) { return blobs_.bytes(id); }, calendar_now());
  }
  outside_ = std::make_unique<LiveOutside>(
      io_, *server_, *blob_server_, blobs_,
      LiveOutside::Launch{
          .token = token_,
          .keys = guard_ ? control::to_text(guard_->issue("the cluster's actors")) : "",
          .threads = options_.threads_per_actor,
          .tensor_host = tensor_host()});
  deployments_ = std::make_unique<Deployments>(
      *outside_, members_,
      Deployments::Events{
          .on_ready = [this](const auto& deployment) { runner_->deployment_ready(deployment); },
          .on_failed =
              [this](const auto& deployment, const wire::Failure& failure) {
                runner_->deployment_failed(deployment, failure);
              },
          .on_free = [this] { outside_->post([this] { runner_->start_queued(); }); },
          .on_stuck =
              [this](ActorId id) {
                supervisor_->kill(id, "it did not answer the end of its epoch");
              }});
  runner_ = std::make_unique<jobs::JobRunner>(jobs::JobRunner::Tools{
      .outside = *outside_,
      .members = members_,
      .deployments = *deployments_,
      .table = table_,
      .options = {.max_jobs_per_deployment = static_cast<std::size_t>(options_.max_jobs_together),
                  .max_recoveries = options_.max_recoveries},
      .on_progress = [this](const jobs::JobEntry& job,
                            wire::JobProgress progress) { gateway_->tell_progress(job, progress); },
      .on_finished = [this](const jobs::JobEntry& job) { gateway_->tell_finished(job); },
      .on_boundary =
          [this](const jobs::JobEntry& job) {
            if (journal_ && !gateway_->closed()) journal_->boundary(job);
          },
      .on_forgotten =
          [this](const jobs::JobEntry& job) {
            if (journal_ && !gateway_->closed()) journal_->forgotten(job.id);
          },
      .recorder = &recorder_,
      .on_failing =
          [this](jobs::JobEntry& job) {
            const auto file = desk_->record_failure(job.id, job.failure.what);
            if (!file.empty()) job.failure.what += " (flight record: " + file + ")";
          },
      .plan_again = [this](const jobs::JobEntry& job,
                           int actors) { return plan_again(job, actors); }});
  supervisor_ = std::make_unique<Supervisor>(Supervisor::Tools{
      .outside = *outside_,
      .members = members_,
      .deployments = *deployments_,
      .runner = *runner_,
      .options = {.start_deadline = static_cast<double>(options_.start_deadline.count()),
                  .task_deadline = static_cast<double>(options_.task_deadline.count()),
                  .max_respawns = options_.max_respawns},
      .note = [this](const std::string& text) { gateway_->note_failure(text); },
      .on_given_up = [this](const std::string& why) { cannot_start(why); },
      .starting_up = [this] { return ready_handler_ != nullptr; }});
  drainer_ =
      std::make_unique<Drainer>(Drainer::Tools{*outside_, members_, *deployments_, *runner_});
  gateway::ClusterFacts facts{.version = TROUPE_VERSION,
                              .host = control::host_name(),
                              .pid = static_cast<std::uint32_t>(getpid()),
                              .endpoint = server_->endpoint(),
                              .model = options_.model,
                              .device = options_.device,
                              .started = outside_->now()};
  started_ = facts.started;
  gateway::Gateway::Tools tools{io_,
                                *server_,
                                *blob_server_,
                                blobs_,
                                members_,
                                *deployments_,
                                table_,
                                *runner_,
                                [this] { return outside_->now(); },
                                [this] {
                                  if (stop_asked_) boost::asio::post(io_, stop_asked_);
                                },
                                {},
                                options_.allow_models
                                    ? gateway::AllowedFolders(*options_.allow_models)
                                    : gateway::AllowedFolders(),
                                journal_.get(),
                                options_.max_recoveries};
  if (options_.logs) tools.log = control::log_line;
  gateway_ = std::make_unique<gateway::Gateway>(facts, std::move(tools));
}

plan::Plan Controller::plan_again(const jobs::JobEntry& job, int actors) const {
  if (!job.model) throw std::invalid_argument("[cluster] the job's model is not known any more");
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return jobs::plan_again(
      job, *job.model, actors, plan::machine_here(options_.device, actors, cores),
      {members_.memory_steps(),
       [this](const plan::Plan& plan) { return !deployments_->shortage(plan); }});
}

void Controller::make_desk() {
  desk_ = std::make_unique<gateway::InspectDesk>(gateway::InspectDesk::Tools{
      .server = *server_,
      .outside = *outside_,
      .members = members_,
      .table = table_,
      .runner = *runner_,
      .recorder = recorder_,
      .signal = [this](ActorId id, int signal) { return hosts_->agent_of(id).signal(id, signal); },
      .lines =
          [this](ActorId id, std::uint64_t after, std::size_t lines) {
            const auto& log = hosts_->agent_of(id).lines(id);
            return wire::LogLines{log.last(), log.lines(after, lines)};
          },
      .host = control::host_name(),
      .pid = static_cast<std::uint32_t>(getpid()),
      .log_folder = options_.log_folder});
  gateway_->use(*desk_, recorder_);
  if (options_.metrics_port < 0) return;
  metrics_ = std::make_unique<gateway::MetricsServer>(
      io_, static_cast<std::uint16_t>(options_.metrics_port), [this] { return metrics(); });
}

std::string Controller::metrics() const {
  return gateway::metrics_text({.members = members_,
                                .table = table_,
                                .runner = *runner_,
                                .recorder = recorder_,
                                .control = server_->counters(),
                                .blobs = blob_server_->counters(),
                                .version = TROUPE_VERSION,
                                .uptime_seconds = outside_->now() - started_});
}

void Controller::actor_exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
  if (!stopping_) return supervisor_->exited(id, incarnation, cause);
  check_stopped();
}

void Controller::make_user_room() {
  user::UserRoom::Options room;
  room.plugins = options_.plugins;
  room.host = control::host_name();
  room.cores = std::thread::hardware_concurrency();
  room.gpus = user::local_gpus(options_.device == "cuda" ? options_.actors : 0);
  if (!options_.plugins.empty())
    room.processes.host_program = user::find_host_program(options_.actor_program);
  room.processes.actor_program = options_.actor_program;
  room.processes.control_endpoint = server_->endpoint();
  room.processes.listen_host = tensor_host();
  room.processes.access = {token_, guard_ ? control::to_text(guard_->issue("user actors")) : "",
                           options_.insecure};
  room.keyed = guard_ != nullptr;
  room.processes.log_folder = options_.log_folder;
  room.note = [this](const std::string& text) { gateway_->note_failure(text); };
  room.on_exit = [this] { check_stopped(); };
  users_ = std::make_unique<user::UserRoom>(io_, *outside_, std::move(room));
  users_->check_plugins([this](std::optional<std::string> why) {
    plugins_checked_ = true;
    if (why) return cannot_start(*why);
    check_ready();
  });
}

void Controller::check_stopped() {
  if (!stopping_ || !stopped_ || hosts_->running() > 0 || users_->running() > 0) return;
  boost::asio::post(io_, std::exchange(stopped_, nullptr));
}

void Controller::on_lost(control::PeerId peer, const std::string& why) {
  if (const auto host = hosts_->name_of(peer)) users_->host_lost(*host, why);
  if (users_->actors().lost(peer, why) || hosts_->lost(peer, why)) return;
  if (!supervisor_->lost(peer, why)) gateway_->client_lost(peer);
}

std::optional<std::string> Controller::on_connect(const control::PeerInfo& peer) {
  if (stopping_) return "the cluster is stopping";
  if (peer.hello.role == "client") return std::nullopt;
  if (peer.hello.role == "user-actor") return users_->actors().hello(peer);
  if (peer.hello.role == "node") return hosts_->hello(peer);
  if (peer.hello.role != "actor")
    return "role \"" + peer.hello.role + "\" is not known here: client, node or actor";
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
    if (users_->actors().on_message(peer, header, payload)) return;
    if (header.kind == wire::Kind::drain_places)
      return drain(peer, header, wire::decode<wire::DrainPlaces>(payload));
    if (const auto host = hosts_->name_of(peer); host && users_->on_message(*host, header, payload))
      return;
    if (hosts_->on_message(peer, header, payload)) return;
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

void Controller::drain(control::PeerId peer, const wire::Header& header,
                       const wire::DrainPlaces& order) {
  std::set<ActorId> places;
  std::set<std::string> hosts;
  for (const auto& name : order.places) {
    const auto found = hosts_->places(name);
    if (!found) {
      server_->reply(peer, header,
                     wire::Failure{wire::FailureCode::not_found,
                                   "\"" + name + "\" is no host and no actor of this cluster"});
      return;
    }
    places.insert(found->begin(), found->end());
    hosts.insert(name);
  }
  std::string text = drainer_->drain({places.begin(), places.end()}, order.now);
  for (const auto& host : hosts) {
    const auto users = users_->drain_host(host, order.now);
    if (!users.empty()) text += "; " + users;
  }
  server_->reply(peer, header, wire::Done{text});
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
  const bool whole = std::ranges::all_of(members_.all(), [](const auto& member) {
    return member.second.remote || member.second.state == ActorState::ready;
  });
  if (ready_handler_ && plugins_checked_ && whole) {
    std::exchange(ready_handler_, nullptr)(std::nullopt);
  }
}

void Controller::cannot_start(const std::string& why) {
  start_failure_ = why;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why);
}

void Controller::stop(const wire::Failure& why, std::function<void()> stopped) {
  if (stopping_) return;
  gateway_->close("the cluster is stopping");
  runner_->fail_all(why);
  stopping_ = true;
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why.what);
  stopped_ = std::move(stopped);
  supervisor_->stop();
  drainer_->stop();
  for (const auto& [id, actor] : members_.all()) {
    if (actor.state == ActorState::ready)
      server_->send(actor.peer, wire::Shutdown{});
    else
      outside_->kill(id);
  }
  hosts_->dismiss();
  users_->stop();
  check_stopped();
  if (!stopped_) return;
  stop_timer_.expires_after(kStopDeadline);
  stop_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    for (const auto& [id, actor] : members_.all())
      outside_->kill(id);
  });
}

}  // namespace troupe::cluster
