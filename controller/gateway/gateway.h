#pragma once
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "controller/gateway/introspection.h"
#include "controller/gateway/model_reader.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/journal/journal.h"
#include "controller/journal/revive.h"
#include "controller/plan/machine.h"
#include "transport/control/blob_channel.h"
#include "transport/control/server.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// Who this cluster is, for status and for defaults of requests.
struct ClusterFacts {
  std::string version;
  std::string host;
  std::uint32_t pid = 0;
  std::string endpoint;
  std::string model;  // default model folder; may be empty
  DeviceKind device = DeviceKind::cpu;
  double started = 0;
};

/// What clients may ask for: checks it, and passes it on. Answers every request, with a failure
/// value where it must.
class Gateway {
 public:
  struct Tools {
    boost::asio::io_context& io;
    control::Server& server;
    control::BlobServer& blob_server;
    control::BlobStore& blobs;
    cluster::Members& members;
    cluster::Deployments& deployments;
    jobs::JobTable& table;
    jobs::JobRunner& runner;
    std::function<double()> now;
    std::function<void()> stop;
    ModelReader::Read read_model = {};  // null = from the folder
    AllowedFolders allowed_models = {};
    journal::Journal* journal = nullptr;  // of the jobs; may be null
    int max_restarts = 3;  // of a controller that a job outlives without a step between them
    /// How long a job of an earlier controller waits for actors, and a job for its client to come
    /// back.
    std::chrono::milliseconds grace = std::chrono::seconds(60);
    /// From when its inputs are here until a job is accepted. A client gives up after 30 s
    /// (client/deadlines.h), and must not find its job running then.
    std::chrono::milliseconds accept_within = std::chrono::seconds(25);
    /// What jobs begin with, latents and pictures: on its way here and of jobs that have not ended.
    std::uint64_t max_input_bytes = 4ull << 30;
    std::uint64_t max_input_bytes_of_client = 2ull << 30;
    /// Hears of every failure. May be empty.
    std::function<void(const std::string&)> log = {};
    /// What jobs with weights of this type are planned for. Null = a host of this process's cores
    /// that nobody has measured.
    std::function<plan::Machine(WeightChoice weight_dtype)> machine = {};
  };

  Gateway(ClusterFacts facts, Tools tools);
  /// Who looks inside is sent on to the desk; what is of note is remembered there.
  void use(Introspection& desk, recorder::Recorder& recorder) {
    introspection_ = &desk;
    recorder_ = &recorder;
  }

  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  /// From now on no job is taken in, also none whose model is being read or whose latents are on
  /// their way.
  /// With a journal, those that have not ended stay in it as they are.
  void close(std::string why) { closed_ = std::move(why); }
  bool closed() const { return closed_.has_value(); }
  /// Jobs of an earlier controller, held in the table, go on as soon as they are planned anew.
  /// `cause`: how that controller ended.
  void take_up(const journal::Revival& revival, const std::string& cause);
  /// Its jobs are cancelled unless they are detached. With a journal they go on, too, where
  /// somebody else waits for them: that is taken for the same client, come back before its old link
  /// was given up; and where nobody closed the link (control::given_up), they are cancelled only if
  /// their client is not back within the grace.
  void client_lost(control::PeerId peer, const std::string& why);
  void tell_progress(const jobs::JobEntry& job, const wire::JobProgress& progress);
  /// With a journal, once its end is in there.
  void tell_finished(jobs::JobEntry& job);
  void note_failure(const std::string& text);

 private:
  recorder::Nanoseconds monotonic() const { return std::llround(tools_.now() * 1e9); }
  void submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  void read_model(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  /// What was announced is held against what the request needs, and against what is kept already,
  /// before a byte of it comes.
  void fetch_input(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
                   const ModelReading& reading);
  std::optional<std::string> no_room_for_input(control::PeerId client, std::uint64_t bytes) const;
  /// With the inputs of its request held here.
  void accept(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
              const ModelReading& reading, control::Clock::time_point asked);
  using Refused = std::function<void(wire::FailureCode, const std::string&)>;
  /// Completes the job by its model and plans it; nothing when it was `refused`.
  std::optional<plan::Plan> planned(wire::JobSpec& job, const ModelReading& reading,
                                    const Refused& refused) const;
  plan::Machine machine_for(const wire::ImageRequest& request) const;
  void drop_inputs(wire::ImageRequest request);
  /// It is in the journal, or there is none: it may begin, and its client is told.
  void admit(jobs::JobId job, bool in_time);
  void not_kept(jobs::JobId job, const std::string& why);
  /// Somebody hands in what is known already: it is told of the same job.
  void accept_again(control::PeerId peer, const wire::Header& header, jobs::JobEntry& job);
  void answer_accepted(control::PeerId peer, const wire::Header& header, const jobs::JobEntry& job);
  void take_up(jobs::JobId job, const std::string& cause, const ModelReading& reading);
  /// Lets a job of an earlier controller go when there are enough actors for it.
  void find_room(jobs::JobId job, control::Clock::time_point until);
  /// The job is nobody's now. It is cancelled with that cause when it is still so after the grace.
  void await_client(jobs::JobId job, const std::string& cause);
  void say_finished(const jobs::JobEntry& job);
  /// Its end is told all the same, with what became of it in the journal.
  void say_not_kept(jobs::JobEntry& job, const std::string& error);
  void refuse(control::PeerId peer, const wire::Header& header, wire::FailureCode code,
              const std::string& why);
  void watch(control::PeerId peer, const wire::Header& header, jobs::JobId job);
  void cancel(control::PeerId peer, const wire::Header& header, jobs::JobId job);
  wire::JobList list(const control::ClientUser& user) const;
  wire::ClusterStatus status(const control::ClientUser& user) const;
  /// The job, if it is there and the peer may see it; else the peer is refused.
  jobs::JobEntry* job_for(control::PeerId peer, const wire::Header& header, jobs::JobId job);

  ClusterFacts facts_;
  Tools tools_;
  Introspection* introspection_ = nullptr;
  recorder::Recorder* recorder_ = nullptr;
  std::optional<std::string> closed_;
  std::vector<std::string> recent_failures_;
  struct Asker {
    control::PeerId peer = 0;
    wire::Header header;
  };
  std::map<jobs::JobId, std::vector<Asker>> askers_;  // of jobs that are being journaled
  std::map<jobs::JobId, std::uint64_t> away_;         // whose client is awaited, by which absence
  std::uint64_t absences_ = 0;
  struct Upload {
    control::PeerId client = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::uint64_t, Upload> uploads_;  // on their way
  std::uint64_t last_upload_ = 0;
  ModelReader reader_;
};

}  // namespace troupe::gateway
