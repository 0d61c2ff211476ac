#pragma once
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/shared_loop.h"

namespace troupe::runtime {

struct ProcessOptions {
  std::string program;           // for its last words: "troupe-actor 3"
  std::string control_endpoint;  // of the controller
  std::string blob_endpoint;     // of the controller; "" = needs none
  wire::Hello hello;
  std::uint64_t incarnation = 0;  // given by the node agent, so that it knows whom it spawned
  std::optional<control::ClientKeys> keys;
  std::shared_ptr<zmq::context_t> context;
};

/// Part that every actor's process has: a control thread (this object's loop) with a link to the
/// controller, whose heartbeats carry the work loop's own progress. The second lane is here:
/// messages arrive on the control thread, whatever the work loop is busy with.
class Process {
 public:
  struct Handlers {  // on the control thread
    std::function<void()> on_ready;
    std::function<void(const wire::Header&, std::span<const std::byte>)> on_message;
    /// Called when the process leaves: the work loop and all waiting must come free.
    std::function<void()> on_stop;
    /// Returns the amount of work that the work loop has done so far; called from any thread.
    std::function<std::uint64_t()> progress;
  };

  explicit Process(ProcessOptions options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Connects, and runs until `stop`. Answers the process's exit code.
  int run(Handlers handlers);
  /// Control thread. Exit code 0 is an orderly end, 2 was never let in, 3 lost the controller.
  void stop(int exit_code, const std::string& why);

  const std::shared_ptr<control::SharedLoop>& loop() const { return loop_; }
  boost::asio::io_context& io() { return loop_->io(); }
  control::Connection& connection() { return *connection_; }
  control::BlobStore& blobs() { return blobs_; }
  std::uint64_t incarnation() const { return options_.incarnation; }
  bool stopping() const { return stopping_; }
  /// Runs `action` on the control thread, unless the process is leaving. From any thread.
  void post(std::function<void(control::Connection&)> action);
  /// A blob of the controller's. Not from the control thread; waits, at most until the deadline,
  /// and calls `tick` meanwhile, until that throws.
  control::BlobResult fetch_blob(std::uint64_t id, std::uint64_t bytes,
                                 control::Milliseconds deadline, const std::function<void()>& tick);

 private:
  void connect();
  void open_blobs(const std::string& secret);
  void tick();

  ProcessOptions options_;
  std::shared_ptr<control::SharedLoop> loop_;
  boost::asio::steady_timer timer_;
  control::BlobStore blobs_;
  std::unique_ptr<control::Connection> connection_;
  std::unique_ptr<control::BlobConnection> blob_connection_;
  Handlers handlers_;
  int exit_code_ = 0;
  bool stopping_ = false;
};

/// Makes the process end with the one that spawned it, whatever happens to that one; Ctrl-C is for
/// the controller. Call first in main.
void begin_as_child(int parent_pid);
/// Returns this process's incarnation of its actor, from TROUPE_INCARNATION, which is removed from
/// the environment. Throws std::runtime_error if the node agent has given none.
std::uint64_t take_incarnation();
/// Returns a secret that the node agent gave by a variable of the environment, or "". The variable
/// is removed, and its text is erased from the memory that /proc/PID/environ shows.
std::string take_secret(const char* variable);
/// Leaves without waiting for a work loop that may be deep in something: the kernel takes
/// everything back.
[[noreturn]] void leave(int code);

}  // namespace troupe::runtime
