#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace troupe::cli {

/// Says on standard error what is to be known before so many actors are started on this host.
/// Throws std::runtime_error if the host's free memory does not hold them.
void check_crowding(int actors, int threads_per_actor, const std::string& device);

/// Returns how long `actors` may take to start: they start a few at a time, and each computes
/// meanwhile.
std::chrono::seconds ready_deadline(int actors);

/// Says on the terminal that actors are starting, and for how long, until it goes out of scope.
class StartingView {
 public:
  StartingView(int actors, bool quiet);
  ~StartingView();
  StartingView(const StartingView&) = delete;
  StartingView& operator=(const StartingView&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace troupe::cli
