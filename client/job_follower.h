#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <variant>

#include "transport/control/blob_channel.h"
#include "transport/wire/client_messages.h"
#include "troupe/client.h"

namespace troupe::client {

/// Fetches one blob; the handler is called exactly once, later, on the same thread.
using FetchBlob = std::function<void(const wire::BlobRef&, control::BlobHandler)>;

/// Puts the messages of one job in order: each message is handed on only when its blobs are here
/// and all messages before it have been handed on. Lives on the client's thread.
class JobFollower : public std::enable_shared_from_this<JobFollower> {
 public:
  using OnEnd = std::function<void(Result<JobResult>)>;

  JobFollower(std::uint64_t job, FetchBlob fetch, OnEnd on_end)
      : job_(job), fetch_(std::move(fetch)), on_end_(std::move(on_end)) {}

  /// `own_thread`: what keeps the loop on the client's thread, which is where the handler runs.
  void on_progress(Client::OnProgress handler, std::shared_ptr<void> own_thread) {
    on_progress_ = std::move(handler);
    own_thread_ = std::move(own_thread);
  }
  void add(wire::JobProgress progress) { push(std::move(progress)); }
  void set_queue_position(int position) { queue_position_ = position; }
  void add(wire::JobFinished finished) { push(std::move(finished)); }
  /// Ends the job's messages here and now, whatever is still on its way.
  void end(Result<JobResult> outcome);

 private:
  using Event = std::variant<wire::JobProgress, wire::JobFinished>;

  void push(Event event);
  void fetch_next();
  void fetched(std::size_t index, control::BlobResult blob);
  void hand_on(wire::JobProgress& progress);
  void hand_on(wire::JobFinished& finished);
  const std::vector<wire::BlobRef>& blobs_of_front() const;

  std::uint64_t job_;
  FetchBlob fetch_;
  OnEnd on_end_;
  Client::OnProgress on_progress_;
  std::shared_ptr<void> own_thread_;
  /// Phase, step, steps, timestep.
  std::tuple<std::optional<JobPhase>, std::int32_t, std::int32_t, std::optional<double>> last_{
      JobPhase::queued, 0, 0, {}};
  int queue_position_ = 0;  // when it was accepted
  std::deque<Event> events_;
  bool fetching_ = false;
  bool ended_ = false;
  std::size_t missing_ = 0;
  std::vector<control::BlobResult> fetched_;
};

}  // namespace troupe::client
