#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/cluster/deployments.h"
#include "controller/cluster/members.h"
#include "controller/jobs/job_table.h"
#include "controller/jobs/step_clock.h"
#include "controller/schedule/dispatcher.h"
#include "transport/control/blob_channel.h"
#include "transport/control/server.h"
#include "transport/wire/actor_messages.h"

namespace troupe::jobs {

/// Carries jobs from the queue to their end: deployment, begin, dispatch, results, report; or abort
/// and cause. Lives on the controller's loop. It is the only one that sends tasks to actors.
class JobRunner {
 public:
  struct Tools {
    boost::asio::io_context& io;
    control::Server& server;
    control::BlobServer& blob_server;
    control::BlobStore& blobs;
    cluster::Members& members;
    cluster::Deployments& deployments;
    JobTable& table;
    std::function<double()> now;  // seconds
    std::function<void(const JobEntry&, wire::JobProgress)> on_progress;
    std::function<void(const JobEntry&)> on_finished;
  };

  explicit JobRunner(Tools tools);
  ~JobRunner();

  /// Starts queued jobs for which there are actors. Call when a job came in or actors became free.
  void start_queued();
  /// Ends a job early: at once when it waits or loads, else when what is issued has drained.
  void cancel(JobId job, const std::string& why);
  void task_done(cluster::ActorId actor, const wire::TaskDone& done);
  void task_failed(cluster::ActorId actor, const wire::TaskFailed& failed);
  /// An actor's process is gone. `cause` says how. Its job fails, its deployment goes.
  void actor_lost(cluster::ActorId actor, const std::string& cause);
  /// Jobs that wait for more actors than the cluster will ever have again fail, with this cause.
  void fail_unplaceable(const std::string& why);
  /// Every job ends now, with this cause.
  void fail_all(const wire::Failure& why);
  /// "job 3 step 5 patch 1 stage 0", or empty.
  std::string doing(cluster::ActorId actor) const;
  bool busy(cluster::ActorId actor) const { return dispatcher_.outstanding(actor) > 0; }

 private:
  struct Run;

  void launch(JobEntry& job, const std::shared_ptr<cluster::Deployment>& deployment);
  void deployed(JobId job, const std::shared_ptr<cluster::Deployment>& deployment,
                const std::optional<wire::Failure>& failure);
  wire::BeginJob begin_message(const JobEntry& job, const cluster::Deployment& deployment,
                               int rank) const;
  void pump();
  void task_complete(Run& run, std::uint32_t task);
  void take_blobs(Run& run, cluster::ActorId actor, const wire::TaskDone& done);
  /// The blob as the controller holds it now; nothing when the job is over or failed by it. Without
  /// an interim one the job goes on, with a warning.
  std::optional<wire::BlobRef> blob_arrived(JobId job, const wire::BlobRef& ref, bool interim,
                                            control::BlobResult result);
  /// A decode task's picture or latents.
  void keep_result(JobId job, std::uint32_t decode_task, std::size_t index,
                   const wire::BlobRef& own);
  /// A replica's preview or latents of a step under way: goes to the watchers when every replica's
  /// part is here.
  void pass_on(JobId job, std::int32_t step, std::int32_t replica, const wire::BlobRef& own);
  /// Lets go of the parts of unfinished steps, and of the results unless the job has succeeded.
  void forget_blobs(Run& run, JobEntry& job, wire::JobState state);
  /// Lets go of what its last steps left, when clients have had time to fetch it.
  void forget_interim(JobEntry& job);
  void maybe_end(JobId job);
  void end_at_actors(Run& run);
  void succeed(Run& run);
  void fail(JobId job, wire::Failure failure);
  /// A failure that only says that a peer is gone waits a moment for the one that says how it
  /// ended.
  void fail_with_cause(JobId job, wire::Failure failure);
  void fail_later(JobId job, wire::Failure failure);
  /// Not before the caller, who may be in the midst of that job, has returned.
  void fail_soon(JobId job, wire::Failure failure);
  void finish(JobId job, wire::JobState state, wire::Failure failure);
  void progress(JobEntry& job, std::vector<wire::BlobRef> blobs = {},
                std::vector<std::string> warnings = {});
  Run* find(JobId job);

  Tools tools_;
  schedule::Dispatcher dispatcher_;
  std::map<JobId, std::unique_ptr<Run>> runs_;
};

}  // namespace troupe::jobs
