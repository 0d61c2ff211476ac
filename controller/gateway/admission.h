#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/gateway/tools.h"
#include "transport/wire/client_messages.h"

namespace troupe::gateway {

/// Takes a job in: has its model read, checks, plans and keeps the request, and answers the client.
class Admission {
 public:
  Admission(const ClusterFacts& facts, const Tools& tools, ModelReader& reader)
      : facts_(facts), tools_(tools), reader_(reader) {}

  void submit(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  /// Takes no job in from now on, also none whose model is being read or whose latents are on their
  /// way.
  void close(std::string why) { closed_ = std::move(why); }
  /// Drops the inputs (latents, pictures) that a job began with.
  void drop_inputs(wire::ImageRequest request);

 private:
  void read_model(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission);
  /// Holds the announced inputs against what the request needs, and against what is kept already,
  /// before a byte of them comes. A job that is only to be checked is answered then.
  void fetch_inputs(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
                    const ModelReading& reading);
  /// Fetches the job's inputs one after another, beginning at `index`; then the job is accepted.
  void fetch_input(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
                   const ModelReading& reading, std::uint64_t upload, std::size_t index);
  std::optional<std::string> no_room_for_input(control::PeerId client, const std::string& behalf,
                                               std::uint64_t bytes) const;
  /// Plans and queues a job, the inputs of whose request are held here. `warnings` are added to the
  /// plan's.
  void accept(control::PeerId peer, const wire::Header& header, wire::SubmitJob submission,
              const ModelReading& reading, control::Clock::time_point asked,
              const std::vector<std::string>& warnings = {});
  using Refused = std::function<void(const wire::Failure&)>;
  /// Completes the job by its model and plans it; nothing when it was `refused`.
  std::optional<plan::Plan> planned(wire::JobSpec& job, const ModelReading& reading,
                                    const Refused& refused) const;
  /// Lets a job begin that is in the journal, or for which there is no journal, and tells its
  /// client.
  void admit(jobs::JobId job, bool in_time);
  void not_kept(jobs::JobId job, const std::string& why);
  /// Answers somebody who hands in a job that is known already: with the same job.
  void accept_again(control::PeerId peer, const wire::Header& header, jobs::JobEntry& job);
  void answer_accepted(control::PeerId peer, const wire::Header& header, const jobs::JobEntry& job);
  void refuse(control::PeerId peer, const wire::Header& header, const wire::Failure& why);

  const ClusterFacts& facts_;
  const Tools& tools_;
  ModelReader& reader_;
  std::optional<std::string> closed_;
  std::map<jobs::JobId, std::vector<cluster::Asker>> askers_;  // of jobs that are being journaled
  struct Upload {
    control::PeerId client = 0;
    std::string behalf;
    std::uint64_t bytes = 0;
    control::Clock::time_point until;
    std::vector<std::string> warnings = {};  // parts of its pictures that the job does not take
  };
  std::map<std::uint64_t, Upload> uploads_;  // on their way
  std::uint64_t last_upload_ = 0;
};

}  // namespace troupe::gateway
