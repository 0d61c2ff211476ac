#include "tests/user_actors/small_cluster.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "controller/app/messages.h"
#include "tests/support/patience.h"
#include "transport/control/endpoint.h"

namespace troupe::testing {

template <class F>
auto SmallCluster::on_loop(F&& action) {
  std::promise<decltype(action())> promise;
  auto future = promise.get_future();
  boost::asio::post(io_, [&] { promise.set_value(action()); });
  if (future.wait_for(kPatience) != std::future_status::ready)
    throw std::runtime_error("loop is stuck");
  return future.get();
}

SmallCluster::SmallCluster(Options options) {
  control::ServerOptions server;
  server.endpoint = options.listen.empty() ? folder_.endpoint("control.sock") : options.listen;
  auto servers = control::bind_servers(io_, server, blobs_);
  server_ = std::move(servers.control);
  blob_server_ = std::move(servers.blobs);
  endpoint_ = server_->endpoint();
  environment_ = std::make_unique<cluster::LiveEnvironment>(io_, *server_, *blob_server_, blobs_,
                                                            cluster::LiveEnvironment::Access{});
  user::UserActorService::Options room;
  room.plugins = options.plugins;
  room.host = "here";
  room.cores = options.cores;
  room.gpus = options.gpus;
  room.check.host_program = TROUPE_BINARY_DIR "/bin/troupe-host";
  room.access.token = "test";
  room.process_host = [this](const std::string& host) {
    return host == "here" ? processes_.get() : nullptr;
  };
  cluster::LocalProcessHost::Options processes;
  processes.host.actor_program = TROUPE_BINARY_DIR "/bin/troupe-actor";
  processes.host.log_folder = options.log_folder;
  processes.host_program = room.check.host_program;
  processes.control_endpoint = endpoint_;
  processes_ = std::make_unique<cluster::LocalProcessHost>(
      io_, processes, [this](const auto& owner, auto incarnation, const auto& cause) {
        room_->actors().exited(owner.id, incarnation, cause);
      });
  room_ = std::make_unique<user::UserActorService>(io_, *environment_, room);
  auto& actors = room_->actors();
  server_->on_connect([&](const control::PeerInfo& peer) -> std::optional<std::string> {
    return peer.hello.role == PeerRole::user_actor ? actors.hello(peer) : std::nullopt;
  });
  server_->on_ready([&](control::PeerId peer) { actors.ready(peer); });
  server_->on_message(
      [&](control::PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
        cluster::deliver({.server = server_.get(), .users = room_.get()}, cluster::Sender::client,
                         {peer, header}, payload);
      });
  server_->on_lost(
      [&](control::PeerId peer, const control::Loss& loss) { actors.lost(peer, loss.why); });
  std::promise<std::optional<std::string>> checked;
  auto future = checked.get_future();
  room_->check_plugins([&](std::optional<std::string> why) { checked.set_value(why); });
  thread_ = std::thread([this] {
    const auto work = boost::asio::make_work_guard(io_);
    io_.run();
  });
  if (future.wait_for(kPatience) != std::future_status::ready)
    throw std::runtime_error("plugins were not checked");
  refusal_ = future.get().value_or("");
}

SmallCluster::~SmallCluster() {
  boost::asio::post(io_, [this] {
    room_->stop("the cluster is stopping");
    io_.stop();
  });
  thread_.join();
  processes_.reset();
  room_.reset();
}

Client SmallCluster::connect() const {
  return take(Client::connect(endpoint_, kPatience, "none"));  // its doors ask for no keys
}

std::size_t SmallCluster::processes() {
  return on_loop([this] { return room_->running() + processes_->running(); });
}

}  // namespace troupe::testing
