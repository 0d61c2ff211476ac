#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "controller/app/cluster.h"
#include "controller/app/endpoints.h"
#include "controller/app/live_environment.h"
#include "controller/app/peer_router.h"
#include "controller/app/startup.h"
#include "controller/deployments/deployments.h"
#include "controller/deployments/members.h"
#include "controller/hosts/local_process_host.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/journal/journal.h"
#include "controller/journal/sqlite_store.h"
#include "controller/journal/writer.h"
#include "controller/plan/machine.h"
#include "controller/service/client_service.h"
#include "controller/service/introspection.h"
#include "controller/service/metrics_server.h"
#include "controller/supervision/drainer.h"
#include "controller/supervision/host_figures.h"
#include "controller/supervision/hosts.h"
#include "controller/supervision/supervisor.h"
#include "controller/user_actors/user_actor_service.h"

namespace troupe::cluster {

/// Plans for the hosts and actors that a cluster has now.
class ClusterPlanner {
 public:
  /// `device`: kind of device that the cluster was started with.
  ClusterPlanner(const Members& members, const Deployments& deployments,
                 const jobs::JobTable& table, const HostFigures& figures, DeviceKind device)
      : members_(members),
        deployments_(deployments),
        table_(table),
        figures_(figures),
        device_(device) {}

  /// Returns the machine that jobs with weights of this type are planned for, by what was measured
  /// of the hosts that are here: of the kind of device that most actors have.
  plan::Machine machine(WeightChoice weight_dtype) const;
  /// Returns the same as `machine`, with the memory of the actor that may hold least.
  plan::Machine least_machine() const;
  /// Same as jobs::plan_again, but with stages as they are loaded already.
  plan::Plan plan_again(const jobs::JobEntry& job, int actors) const;
  /// Plans a request of several jobs, on the degrees that the first job is planned for.
  static plan::Plan plan_batch(const jobs::JobEntry& first, const wire::ImageRequest& request);

 private:
  const Members& members_;
  const Deployments& deployments_;
  const jobs::JobTable& table_;
  const HostFigures& figures_;
  DeviceKind device_;
};

/// Extent of a stop: all of a cluster with the hosts that joined it, or its controller alone. A
/// controller that keeps a journal leaves its jobs and hosts to the next controller then; without a
/// journal nothing waits.
enum class Stop { cluster, controller };

/// The controller on its loop, the composition root: makes what it consists of, says who hears of
/// what, starts it and stops it. Construct, use and destroy it on the thread that runs `io`.
class Controller {
 public:
  /// Binds and spawns. Throws std::runtime_error, one line.
  Controller(boost::asio::io_context& io, const ClusterOptions& options);
  ~Controller();

  std::string endpoint() const { return endpoints_.endpoint(); }
  std::uint16_t metrics_port() const { return metrics_ ? metrics_->port() : 0; }
  /// Same as Startup::on_ready.
  void on_ready(std::function<void(std::optional<std::string>)> handler) {
    startup_.on_ready(std::move(handler));
  }
  /// Stops `what`. Jobs fail with the cause `why`. Actors are told to leave, and those that do not
  /// are killed; then `stopped` is called.
  void stop(Stop what, const wire::Failure& why, std::function<void()> stopped);
  /// Sets what is called when a client asks the cluster to stop.
  void on_stop_asked(std::function<void()> handler) { stop_asked_ = std::move(handler); }

 private:
  void connect();
  void start();
  void take_up_jobs();
  void process_started(const ProcessOwner& owner, std::uint64_t incarnation, std::uint32_t pid);
  void process_exited(const ProcessOwner& owner, std::uint64_t incarnation, const ExitCause& cause);
  void check_stopped();
  std::string metrics();
  ProcessHost::OnExit on_process_exit();
  std::function<void(const std::string&)> note_failure();
  LocalProcessHost::Options process_options();
  user::UserActorService::Options user_actor_options();
  service::Introspection::Tools introspection_tools();
  service::Tools service_tools();

  // In the order of what they need: each knows those above it.
  boost::asio::io_context& io_;
  const ClusterOptions options_;
  const std::string token_;  // of the actors

  std::unique_ptr<journal::SqliteStore> store_;  // until the writer has it; null without a journal
  const journal::PreviousRun previous_run_;
  std::unique_ptr<journal::Writer> writer_;

  control::Refusals refusals_;
  control::BlobStore blobs_;
  Endpoints endpoints_;
  LiveEnvironment environment_;
  const double started_;

  Members members_;
  jobs::JobTable table_;
  recorder::Recorder recorder_;
  service::FailureLog failures_;
  std::unique_ptr<journal::Journal> journal_;  // null where none is asked for

  HostFigures figures_;
  Deployments deployments_;
  ClusterPlanner planner_;
  jobs::JobRunner runner_;
  Supervisor supervisor_;
  Drainer drainer_;
  Startup startup_;

  LocalProcessHost processes_;
  Hosts hosts_;
  user::UserActorService users_;

  service::Introspection introspection_;
  service::ClientService clients_;
  std::unique_ptr<service::MetricsServer> metrics_;  // null where nobody asks for them
  PeerRouter router_;

  boost::asio::steady_timer stop_timer_;
  std::function<void()> stop_asked_;
  std::function<void()> stopped_;
  bool stopping_ = false;
  std::string goodbye_;  // text for hosts that wait for the next controller; "" = there are none
};

}  // namespace troupe::cluster
