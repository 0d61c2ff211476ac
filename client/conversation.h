#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "client/job_follower.h"
#include "client/link.h"

namespace troupe::client {

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
