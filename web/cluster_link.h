#pragma once
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "troupe/client.h"
#include "troupe/inspect.h"

namespace troupe::web {

/// The gateway's connection to one cluster, on a thread of its own: connects, asks how the cluster
/// is, and connects again where it was lost.
class ClusterLink {
 public:
  struct Target {
    std::string endpoint;
    std::string keys;
  };
  struct Clients {
    std::shared_ptr<Client> client;
    std::shared_ptr<Inspector> inspector;  // over a link of its own, which may be lost alone
    std::string series;                    // of its job numbers, as `series_name` makes it
  };
  /// Some of a cluster's jobs.
  struct Listing {
    std::vector<JobInfo> jobs;
    bool all_seen = false;  // every job was in this one or an earlier one since it was so last
    std::vector<std::uint64_t> sought;  // those that were asked for, and are among them if they are
  };
  /// Handlers, called on the gateway's loop.
  struct Handlers {
    std::function<void(const std::string& series)> on_connected;
    std::function<void(Result<ClusterInfo>)> on_status;
    std::function<void(Listing)> on_jobs;
  };

  ClusterLink(boost::asio::io_context& io, Target target, Handlers handlers);
  ~ClusterLink();
  ClusterLink(const ClusterLink&) = delete;
  ClusterLink& operator=(const ClusterLink&) = delete;

  const Target& target() const { return target_; }
  /// Returns the connection; null while there is none. Any thread.
  std::shared_ptr<Clients> connection() const;
  /// Asks for jobs more often for a while, because somebody wants to know of them.
  void want_jobs();
  /// Asks for a job that has not been listed, because somebody wants to know of it. Returns false
  /// where so many are asked for that it must wait.
  bool seek(std::uint64_t job);

 private:
  void run(const std::stop_token& stop);
  bool connect(const std::stop_token& stop);
  bool ask(const std::stop_token& stop);
  bool ask_status(const Clients& connection, const std::stop_token& stop);
  Result<std::shared_ptr<Inspector>> inspect(const std::stop_token& stop) const;
  Result<Listing> list(Client& client, bool with_pages, const std::set<std::uint64_t>& sought);
  void lose(const Error& why);
  bool pause(std::chrono::milliseconds time, const std::stop_token& stop);

  boost::asio::io_context& io_;
  Target target_;
  std::shared_ptr<Handlers> handlers_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point jobs_wanted_until_{};
  std::chrono::steady_clock::time_point jobs_asked_{};
  std::set<std::uint64_t> sought_;
  std::shared_ptr<Clients> connection_;
  // The thread's own:
  std::chrono::steady_clock::time_point status_asked_{};
  std::size_t next_page_ = 0;  // 0 = no pass was made over this connection
  std::jthread thread_;
};

}  // namespace troupe::web
