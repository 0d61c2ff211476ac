#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "controller/app/cluster.h"
#include "controller/app/live_environment.h"
#include "controller/app/socket_file.h"
#include "controller/deployments/deployments.h"
#include "controller/deployments/members.h"
#include "controller/gateway/gateway.h"
#include "controller/gateway/introspection.h"
#include "controller/gateway/metrics_server.h"
#include "controller/hosts/node_agent.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/journal/journal.h"
#include "controller/journal/sqlite_store.h"
#include "controller/journal/writer.h"
#include "controller/supervision/drainer.h"
#include "controller/supervision/host_figures.h"
#include "controller/supervision/hosts.h"
#include "controller/supervision/supervisor.h"
#include "controller/user_actors/user_actor_service.h"
#include "transport/control/blob_channel.h"
#include "transport/control/endpoint.h"
#include "transport/control/refusals.h"
#include "transport/control/server.h"
#include "transport/control/zap.h"

namespace troupe::cluster {

/// The controller on its loop: wires membership, deployments, jobs and gateway together and handles
/// what happens to processes. Construct, use and destroy it on the thread that runs `io`.
class Controller {
 public:
  /// Binds and spawns. Throws std::runtime_error, one line.
  Controller(boost::asio::io_context& io, const ClusterOptions& options);
  ~Controller();

  std::string endpoint() const { return server_->endpoint(); }
  std::uint16_t metrics_port() const { return metrics_ ? metrics_->port() : 0; }
  /// Called once, when all actors but drained ones are ready (nothing) or one cannot be started
  /// (why).
  void on_ready(std::function<void(std::optional<std::string>)> handler);
  /// Jobs fail with that cause: `why`. Actors are told to leave, and those that do not are killed;
  /// then `stopped` is called.
  void stop(const wire::Failure& why, std::function<void()> stopped);
  /// A client asked the cluster to stop.
  void on_stop_asked(std::function<void()> handler) { stop_asked_ = std::move(handler); }

 private:
  void open_journal();
  void open_endpoints();
  /// Of the keys that clients must have; null where none are asked for.
  std::shared_ptr<control::Guard> make_guard(const control::ServerOptions& server);
  void make_rooms();
  /// Starts processes for places that never had one, a few at a time: the loop goes on meanwhile.
  void fill_places();
  void take_up_jobs();
  void make_introspection();
  std::string tensor_host() const;
  /// What jobs with weights of this type ("" = any) are planned for, by what was measured of the
  /// hosts that are here: of the kind of device that most actors have.
  plan::Machine machine(WeightChoice weight_dtype) const;
  plan::Plan plan_again(const jobs::JobEntry& job, int actors) const;
  std::string metrics() const;
  void actor_exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause);
  std::optional<std::string> on_connect(const control::PeerInfo& peer);
  std::string name_of(control::PeerId peer) const;
  /// Why a peer is not let in.
  std::optional<std::string> stranger(const control::PeerInfo& peer);
  /// `why`, which is told if it is a reason.
  std::optional<std::string> turned_away(const control::PeerInfo& peer,
                                         std::optional<std::string> why);
  /// Of the blob channel: who shows the secret of his control link.
  control::BlobPass on_blob_connect(const control::PeerInfo& peer);
  /// Somebody says that he is a process which has a link of its own: its holder and the log are
  /// told.
  void tell_of_rival(control::PeerId holder, const control::PeerInfo& rival,
                     const std::string& what);
  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  void on_lost(control::PeerId peer, const std::string& why);
  void make_user_actors();
  void drain(control::PeerId peer, const wire::Header& header, const wire::DrainPlaces& order);
  void check_ready();
  void check_stopped();
  void cannot_start(const std::string& why);

  boost::asio::io_context& io_;
  ClusterOptions options_;
  std::optional<control::IpcFolder> folder_;
  std::string token_;
  control::Refusals refusals_;
  std::map<control::PeerId, control::Clock::time_point> told_of_rivals_;
  std::shared_ptr<control::Guard> guard_;  // of the keys; null where none are asked for
  control::BlobStore blobs_;
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blob_server_;
  SocketFile socket_file_;
  SocketFile blob_socket_file_;
  std::unique_ptr<LiveEnvironment> environment_;
  Members members_;
  std::unique_ptr<HostFigures> figures_;
  jobs::JobTable table_;
  recorder::Recorder recorder_;
  std::unique_ptr<journal::SqliteStore> store_;  // until the writer has it
  journal::Past past_;
  std::unique_ptr<journal::Writer> writer_;
  std::unique_ptr<journal::Journal> journal_;  // null where none is asked for
  std::unique_ptr<Deployments> deployments_;
  std::unique_ptr<jobs::JobRunner> runner_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<gateway::Introspection> introspection_;
  std::unique_ptr<gateway::Gateway> gateway_;
  std::unique_ptr<gateway::MetricsServer> metrics_;
  std::unique_ptr<NodeAgent> agent_;
  std::unique_ptr<Hosts> hosts_;
  std::unique_ptr<Drainer> drainer_;
  std::unique_ptr<user::UserActorService> users_;
  std::deque<ActorId> unfilled_;  // places that never had a process
  bool plugins_checked_ = false;
  boost::asio::steady_timer stop_timer_;
  std::optional<std::string> start_failure_;
  std::function<void(std::optional<std::string>)> ready_handler_;
  std::function<void()> stop_asked_;
  std::function<void()> stopped_;
  double started_ = 0;
  bool stopping_ = false;
  bool awaits_hosts_ = true;  // while it stops
};

}  // namespace troupe::cluster
