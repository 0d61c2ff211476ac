#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/pretend/accesses.h"
#include "tests/gpu/pretend/board.h"
#include "tests/gpu/pretend/machine.h"

namespace pretend {

using SteadyClock = std::chrono::steady_clock;
class Device;

/// Position of a stream when something was recorded.
struct Mark {
  struct Stream* stream = nullptr;
  std::uint64_t count = 0;
};

struct Step {
  Command command;
  std::uint64_t count = 0;  // its number in the stream
  std::uint64_t turn = 0;   // its number in the hardware queue
  std::vector<Mark> after;  // besides what stands before it in the stream
  SteadyClock::time_point not_before;
  bool started = false;
};

/// Queues that run late. Never goes away: events and steps elsewhere point to it.
struct Stream {
  Device* device = nullptr;
  std::size_t number = 0;
  bool blocking = false;  // in the order of the legacy stream
  bool destroyed = false;
  bool capturing = false;
  std::size_t queue = 0;  // of the hardware
  std::uint64_t issued = 0, completed = 0;
  std::deque<std::shared_ptr<Step>> steps;
  Clock clock;  // what its next command comes after
};

struct Event {
  Device* device = nullptr;
  Mark mark;
  Clock clock;
  bool timed = false;
  std::shared_ptr<SteadyClock::time_point> passed;
};

/// One GPU of this process: its streams, run by one thread; its context lock; its memory.
class Device {
 public:
  explicit Device(int index);

  int index() const { return index_; }
  Stream* make_stream(bool blocking);
  Stream* legacy() { return legacy_; }

  // All of this under Machine::mutex().
  /// Queues a command; returns the race that the command is, if it is one.
  std::optional<std::string> queue(Stream& stream, Command command, std::vector<Mark> after);
  bool idle() const;
  Clock everything() const;
  std::vector<Mark> marks() const;  // where all streams are

  /// Waits until what has been issued has run; at the context lock's holder's cost.
  void drain(std::unique_lock<std::mutex>& lock, const std::string& why);

  /// Enters the context lock, which is recursive; who waits for it is known.
  void enter(std::unique_lock<std::mutex>& lock, const char* call);
  void leave();

  cudaError_t sticky = cudaSuccess;
  std::set<std::string> loaded;
  std::map<std::uintptr_t, std::size_t> allocations;
  std::size_t allocated = 0;

 private:
  friend class Machine;
  void work();
  void order(Stream& stream, std::vector<Mark>& after);
  bool ready(const Stream& stream, SteadyClock::time_point now,
             SteadyClock::time_point& soonest) const;
  std::shared_ptr<Step> choose(SteadyClock::time_point now, SteadyClock::time_point& soonest,
                               Stream*& of);
  void complete(Stream& stream);
  void publish();
  std::vector<std::pair<Stream*, std::shared_ptr<Step>>> running() const;
  void name_cycle(const std::string& why);

  int index_;
  Stream* legacy_ = nullptr;
  std::vector<Stream*> streams_;
  std::vector<std::set<std::uint64_t>> hardware_;  // turns of what has not started yet
  std::uint64_t turns_ = 0;
  int free_blocks_ = 0;
  pid_t holder_ = 0;
  int depth_ = 0;
  std::string draining_;  // why the holder waits for the device
  std::map<pid_t, std::string> at_the_lock_;
  std::uint64_t moved_ = 0;
  bool published_ = false;
  std::thread thread_;
};

/// State of the whole process: devices, memory of the host, who touched what.
class Machine {
 public:
  static Machine& get();
  std::mutex& mutex() { return mutex_; }
  std::condition_variable& changed() { return changed_; }
  /// Returns a device, made when it is asked for first, as a context is. Under the mutex.
  Device& device(int index);
  bool has(int index) const { return devices_.contains(index); }
  int device_count() const { return count_; }
  void moved();
  Device* device_of(const void* data);  // whose memory that is, or null

  Accesses accesses;
  Clock host;  // what the host has seen the end of
  std::map<std::uintptr_t, std::size_t> pinned;
  std::size_t streams = 0;
  Board* board = nullptr;
  int board_descriptor = -1;
  bool stopping = false;

 private:
  Machine();
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_;
  std::map<int, std::unique_ptr<Device>> devices_;
};

pid_t thread_id();

}  // namespace pretend
