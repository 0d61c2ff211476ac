#pragma once
#include <cmath>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "controller/gateway/inspect.h"
#include "controller/gateway/model_reader.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
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
  std::string model;   // default model folder; may be empty
  std::string device;  // cpu | cuda
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
  };

  Gateway(ClusterFacts facts, Tools tools);
  /// Who looks inside is sent on to the desk; what is of note is remembered there.
  void use(InspectDesk& desk, recorder::Recorder& recorder) {
    desk_ = &desk;
    recorder_ = &recorder;
  }

  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  /// From now on no job is taken in, also none whose model is being read or whose latents are on
  /// their way.
  void close(std::string why) { closed_ = std::move(why); }
  /// Its jobs are cancelled unless they are detached.
  void client_lost(control::PeerId peer);
  void tell_progress(const jobs::JobEntry& job, const wire::JobProgress& progress);
  void tell_finished(const jobs::JobEntry& job);
  void note_failure(const std::string& text);

 private:
  recorder::Nanoseconds monotonic() const { return std::llround(tools_.now() * 1e9); }
  void submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  void read_model(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  void accept(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
              const ModelReading& reading);
  void refuse(control::PeerId peer, const wire::Header& header, const wire::SubmitJob& submission,
              wire::FailureCode code, const std::string& why);
  void watch(control::PeerId peer, const wire::Header& header, jobs::JobId job);
  void cancel(control::PeerId peer, const wire::Header& header, jobs::JobId job);
  wire::JobList list() const;
  wire::ClusterStatus status() const;

  ClusterFacts facts_;
  Tools tools_;
  InspectDesk* desk_ = nullptr;
  recorder::Recorder* recorder_ = nullptr;
  std::optional<std::string> closed_;
  std::vector<std::string> recent_failures_;
  ModelReader reader_;
};

}  // namespace troupe::gateway
