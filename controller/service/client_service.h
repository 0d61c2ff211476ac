#pragma once
#include <string>

#include "controller/service/admission.h"
#include "controller/service/introspection.h"
#include "controller/service/tools.h"

namespace troupe::service {

using cluster::Asker;

/// Checks clients' requests and passes them on. Answers every request, with a failure value where
/// it must. Tells clients, and the journal, what becomes of their jobs.
class ClientService final : public jobs::JobListener {
 public:
  ClientService(ClusterFacts facts, Tools tools);
  /// Sets the introspection that writes down how jobs fail. Must be called before any job comes in.
  void use(Introspection& introspection) { introspection_ = &introspection; }

  /// Each answers a request of a peer whose role permits it: the table of messages has said so
  /// (controller/app/messages.cpp).
  void handle(const Asker& asker, wire::SubmitJob submission);
  void handle(const Asker& asker, const wire::WaitJob& wanted);
  void handle(const Asker& asker, const wire::CancelJob& order);
  void handle(const Asker& asker, const wire::ListJobs& wanted);
  void handle(const Asker& asker, const wire::GetStatus& wanted);
  void handle(const Asker& asker, const wire::StopCluster& order);
  /// Takes no job in from now on, also none whose model is being read, that is being planned, or
  /// whose latents are on their way. With a journal, jobs that have not ended stay in it as they
  /// are.
  void close(const std::string& why);
  /// Takes up jobs of an earlier controller, held in the table, which go on as soon as they are
  /// planned anew. `cause`: how that controller ended.
  void take_up(const journal::Revival& revival, const std::string& cause) {
    restored_.take_up(revival, cause);
  }
  /// Cancels the jobs of a client that is gone, unless they are detached. With a journal they go
  /// on, too, while somebody else waits for them, who may be the same client, come back before its
  /// old link was given up; and where nobody closed the link (Loss::given_up), or the one who
  /// waited leaves, they are cancelled only if nobody is back within the grace.
  void client_lost(control::PeerId peer, const control::Loss& loss);

  // Methods of JobListener:
  void progress(const jobs::JobEntry& job, const wire::JobProgress& progress) override;
  /// Writes down what had happened, and adds the file's name to the job's failure.
  void failing(jobs::JobEntry& job) override;
  void batch_failing(const jobs::JobEntry& batch, const std::string& cause) override;
  /// Tells of the job's end; with a journal, once the end is in there.
  void finished(jobs::JobEntry& job) override;
  void boundary(const jobs::JobEntry& job) override;
  void forgotten(const jobs::JobEntry& job) override;

 private:
  void notify_finished(const jobs::JobEntry& job);
  /// Tells of the job's end although it could not be journaled, with what became of it in the
  /// journal.
  void notify_not_journaled(jobs::JobEntry& job, const std::string& error);
  template <class M>
  void reply(const Asker& asker, const M& message) {
    tools_.server.reply(asker.peer, asker.header, message);
  }

  ClusterFacts facts_;
  Tools tools_;
  ModelReader reader_;
  JobPlanner planner_;
  Admission admission_;
  RestoredJobs restored_;
  Introspection* introspection_ = nullptr;
  bool closed_ = false;
};

}  // namespace troupe::service
