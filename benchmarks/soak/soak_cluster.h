#pragma once
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "troupe/client.h"

namespace troupe::soak {

/// A process with its output in a file; killed with SIGKILL when it goes before its end.
class Child {
 public:
  Child(std::vector<std::string> words, const std::string& output);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Returns false at the deadline.
  bool ended(std::chrono::milliseconds deadline);

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
};

/// Resources that a process holds; zeros when the process is gone.
struct Held {
  double resident_mib = 0;
  int descriptors = 0;
};
Held held(pid_t pid);
/// Names in /dev/shm that could be ours.
int shared_memory_names();

struct SoakClusterOptions {
  std::string programs;  // folder of troupe, with troupe-actor and troupe-host beside it
  std::string plugin;    // with the class Counter of examples/actors
  std::string model;
  int actors = 4;
  int descriptors = 0;  // that the controller may have; 0 = as many as this process
};

/// A controller with a journal, and a guest host with one actor, as processes of this machine. One
/// thread at a time may strike it; the endpoint stays.
class SoakCluster {
 public:
  explicit SoakCluster(SoakClusterOptions options);
  ~SoakCluster();

  const std::string& endpoint() const { return endpoint_; }
  std::string folder() const { return folder_.string(); }
  pid_t controller() const { return controller_pid_; }
  int descriptors() const { return options_.descriptors; }
  pid_t guest() const { return guest_->pid(); }
  int places() const { return options_.actors + 1; }
  std::string program() const { return options_.programs + "/troupe"; }

  /// kill -9, and another one on the same journal.
  void restart_controller();
  /// The same, with a bit flipped in one of the journal's files meanwhile. True where the next one
  /// refused such a journal and had to be told to salvage it.
  bool restart_damaged(unsigned seed);
  /// The guest is killed, or leaves in order, and comes again.
  void restart_guest(bool orderly);
  /// Looks for a minute, also for one that is being started again.
  Client connect() const;
  /// Every actor is there and no job is left; looks for three minutes.
  bool whole() const;

 private:
  void start_controller(bool salvage = false);
  void kill_controller();
  void start_guest();

  SoakClusterOptions options_;
  std::filesystem::path folder_;
  std::string endpoint_;
  std::unique_ptr<Child> controller_;
  std::atomic<pid_t> controller_pid_ = -1;
  std::unique_ptr<Child> guest_;
};

}  // namespace troupe::soak
