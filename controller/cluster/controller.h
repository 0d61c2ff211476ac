#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "controller/cluster/cluster.h"
#include "controller/cluster/deployments.h"
#include "controller/cluster/members.h"
#include "controller/cluster/node_agent.h"
#include "controller/cluster/socket_file.h"
#include "controller/gateway/gateway.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "transport/control/blob_channel.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// The controller on its loop: wires membership, deployments, jobs and gateway together and handles
/// what happens to processes. Construct, use and destroy it on the thread that runs `io`.
class Controller {
 public:
  /// Binds and spawns. Throws std::runtime_error, one line.
  Controller(boost::asio::io_context& io, const ClusterOptions& options);
  ~Controller();

  std::string endpoint() const { return server_->endpoint(); }
  /// Called once, when all actors are ready (nothing) or one cannot be started (why).
  void on_ready(std::function<void(std::optional<std::string>)> handler);
  /// Jobs fail with that cause: `why`. Actors are told to leave, and those that do not are killed;
  /// then `stopped` is called.
  void stop(const wire::Failure& why, std::function<void()> stopped);
  /// A client asked the cluster to stop.
  void on_stop_asked(std::function<void()> handler) { stop_asked_ = std::move(handler); }

 private:
  void open_endpoints();
  void make_rooms();
  void spawn(ActorId id);
  void actor_exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause);
  std::optional<std::string> on_connect(const control::PeerInfo& peer);
  /// Of the blob channel: its own actors, and clients that have a control link.
  std::optional<std::string> on_blob_connect(const control::PeerInfo& peer) const;
  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  void on_lost(control::PeerId peer, const std::string& why);
  void check_ready();
  void cannot_start(const std::string& why);
  void respawn(ActorId id, const std::string& ended);
  void respawn_later(ActorId id);
  void supervise();
  void kill_actor(ActorId id, const std::string& why);
  double now() const;

  boost::asio::io_context& io_;
  ClusterOptions options_;
  std::optional<control::IpcFolder> folder_;
  std::string token_;
  control::BlobStore blobs_;
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blob_server_;
  SocketFile socket_file_;
  SocketFile blob_socket_file_;
  Members members_;
  jobs::JobTable table_;
  std::unique_ptr<Deployments> deployments_;
  std::unique_ptr<jobs::JobRunner> runner_;
  std::unique_ptr<gateway::Gateway> gateway_;
  std::unique_ptr<NodeAgent> agent_;
  boost::asio::steady_timer supervision_timer_;
  boost::asio::steady_timer stop_timer_;
  std::map<ActorId, std::string> kill_reasons_;
  std::map<ActorId, control::Clock::time_point> spawned_at_;
  std::map<ActorId, control::Clock::time_point>
      seen_idle_;  // when supervision last saw it without a task
  std::optional<std::string> start_failure_;
  std::function<void(std::optional<std::string>)> ready_handler_;
  std::function<void()> stop_asked_;
  std::function<void()> stopped_;
  bool stopping_ = false;
};

}  // namespace troupe::cluster
