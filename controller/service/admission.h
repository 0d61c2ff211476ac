#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/journal/journal.h"
#include "controller/service/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::service {

/// Takes a job in: has its model read and a plan made, checks and keeps the request, and answers
/// the client.
class Admission {
 public:
  Admission(const ClusterFacts& facts, const Tools& tools, ModelReader& reader, JobPlanner& planner)
      : facts_(facts), tools_(tools), reader_(reader), planner_(planner) {}

  void submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  /// Takes no job in from now on, also none whose model is being read, that is being planned, or
  /// whose latents are on their way.
  void close(std::string why) { closed_ = std::move(why); }
  /// Drops the inputs (latents, pictures) that a job began with.
  void drop_inputs(wire::ImageRequest request);

 private:
  /// A job on its way in.
  struct Incoming {
    control::PeerId peer = 0;
    wire::Header header;
    wire::SubmitJob submission;
    control::Clock::time_point asked;  // when its client began to wait for an answer
    ModelReading reading = {};
    PlannedJob planned = {};
    bool has_inputs = false;                 // the blobs of its request are held here
    std::vector<std::string> warnings = {};  // parts of its pictures that the job does not take
  };
  using IncomingPtr = std::shared_ptr<Incoming>;

  void read_model(const IncomingPtr& job);
  /// Has the job planned, and goes on with `next` where the cluster can compute it.
  void plan(const IncomingPtr& job, void (Admission::*next)(const IncomingPtr&));
  /// Returns why the job is not taken in whatever its plan is.
  std::optional<wire::Failure> bar(const Incoming& job) const;
  /// Returns that the job's model was not read, or the job not planned, in time.
  wire::Failure too_late(const char* where, const char* what, const Incoming& job) const;
  /// Returns why the planned job is not taken in.
  std::optional<wire::Failure> refusal(const Incoming& job) const;
  /// Returns the plan's warnings, and those of what the job does not take or cannot have.
  std::vector<std::string> warnings_of(const Incoming& job) const;
  /// Holds the announced inputs against what is kept already, before a byte of them comes. A job
  /// that is only to be checked is answered then.
  void fetch_inputs(const IncomingPtr& job);
  /// Fetches the job's inputs one after another, beginning at `index`; then the job is accepted.
  void fetch_input(const IncomingPtr& job, std::uint64_t upload, std::size_t index);
  std::optional<std::string> no_room_for_input(control::PeerId client, const std::string& behalf,
                                               std::uint64_t bytes) const;
  /// Accepts a job whose inputs have come: by the plan that it has, unless the pictures are of
  /// other sizes than announced or the cluster cannot compute it any more.
  void accept_with_inputs(const IncomingPtr& job);
  /// Queues a planned job, the inputs of whose request are held here.
  void accept(const IncomingPtr& job);
  /// Lets a job begin that is in the journal, or for which there is no journal, and tells its
  /// client.
  void admit(jobs::JobId job, bool in_time);
  void not_kept(jobs::JobId job, const std::string& why);
  /// Answers somebody who hands in a job that is known already: with the same job.
  void accept_again(control::PeerId peer, const wire::Header& header, jobs::JobEntry& job);
  void answer_accepted(control::PeerId peer, const wire::Header& header, const jobs::JobEntry& job);
  void refuse(control::PeerId peer, const wire::Header& header, const wire::Failure& why);
  /// Same as above; the inputs that are held for the job are dropped.
  void refuse(const Incoming& job, const wire::Failure& why);

  const ClusterFacts& facts_;
  const Tools& tools_;
  ModelReader& reader_;
  JobPlanner& planner_;
  std::optional<std::string> closed_;
  std::map<jobs::JobId, std::vector<cluster::Asker>> askers_;  // of jobs that are being journaled
  struct Upload {
    control::PeerId client = 0;
    std::string behalf;
    std::uint64_t bytes = 0;
    control::Clock::time_point until;
  };
  std::map<std::uint64_t, Upload> uploads_;  // on their way
  std::uint64_t last_upload_ = 0;
};

/// Jobs whose controller or client went away: those of an earlier controller go on once they are
/// planned anew and there are actors for them; those without a client wait for it for a while.
class RestoredJobs {
 public:
  RestoredJobs(const Tools& tools, ModelReader& reader, JobPlanner& planner)
      : tools_(tools), reader_(reader), planner_(planner) {}

  /// Takes up jobs of an earlier controller, held in the table. `cause`: how that controller ended.
  void take_up(const journal::Revival& revival, const std::string& cause);
  /// Waits for the client of a job that is nobody's now. The job is cancelled with that cause when
  /// it is still nobody's after the grace.
  void await_client(jobs::JobId job, const std::string& cause);
  /// Stops taking jobs up. With a journal, jobs that have not ended stay in it as they are.
  void close() { closed_ = true; }

 private:
  /// Has the job planned, if what was read is what it came in with.
  void plan(jobs::JobId job, const std::string& cause, const ModelReading& reading);
  void take_up(jobs::JobId job, const std::string& cause, const ModelReading& reading,
               PlannedJob planned);
  /// Returns the job while it is to be taken up; null when it has ended, or no job is.
  jobs::JobEntry* awaited(jobs::JobId job);
  void give_up(jobs::JobId job, const std::string& cause, const std::string& why);

  const Tools& tools_;
  ModelReader& reader_;
  JobPlanner& planner_;
  bool closed_ = false;
  std::map<jobs::JobId, std::uint64_t> away_;  // jobs whose client is awaited, and the absence
  std::uint64_t absences_ = 0;
};

}  // namespace troupe::service
