#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <variant>

#include "client/link.h"
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

/// A link with the jobs that are followed over it, until the link is lost.
class Conversation {
 public:
  /// Same as Link::open, but with a conversation over the link.
  static std::shared_ptr<Conversation> open(const std::string& endpoint,
                                            std::chrono::milliseconds timeout,
                                            const std::string& keys, Error& error,
                                            const std::stop_token& stop);

  Link& link() { return *link_; }
  /// Link's thread. What comes of that job is handed on from now on.
  void accepted(const wire::JobAccepted& accepted, Client::OnProgress on_progress);
  /// Waits for a job's end, for `timeout` at most, which ends at `until`.
  Result<JobResult> wait(std::uint64_t job, std::chrono::milliseconds timeout,
                         std::chrono::steady_clock::time_point until,
                         const Client::OnProgress& on_progress);
  /// `on_end` is called once, on the link's thread; at once if the job's end is here already.
  void watch(std::uint64_t job, Client::OnProgress on_progress, Client::OnEnd on_end);

 private:
  struct Ending {
    std::optional<Result<JobResult>> result;
    int waiters = 0;
  };

  void follow(std::uint64_t job, Client::OnProgress on_progress);
  void attach(std::uint64_t job, bool ask, const Client::OnProgress& on_progress);
  void end(std::uint64_t job, Result<JobResult> result);
  void lose(const Error& error);
  Result<JobResult> await(std::uint64_t job, std::chrono::milliseconds timeout,
                          std::chrono::steady_clock::time_point until);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Ending>
      endings_;  // of jobs that are followed, or ended and not yet asked for
  std::map<std::uint64_t, std::shared_ptr<JobFollower>> followers_;  // link's thread
  std::map<std::uint64_t, Client::OnEnd> watchers_;                  // link's thread
  std::unique_ptr<Link> link_;  // last: its thread ends before the rest goes
};

}  // namespace troupe::client
