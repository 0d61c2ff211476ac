#pragma once

#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/shared_loop.h"

namespace troupe::runtime {

/// The single ordered mailbox of an actor: filled by the control thread, emptied by the work loop.
/// Thread-safe.
template <class Message>
class Mailbox {
 public:
  void put(Message message) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      messages_.push_back(std::move(message));
    }
    filled_.notify_one();
  }
  /// Several at once, in their order.
  template <class Messages>
  void put_all(Messages&& messages) {
    {
      std::lock_guard lock(mutex_);
      if (closed_) return;
      for (auto& message : messages)
        messages_.push_back(std::move(message));
    }
    filled_.notify_one();
  }
  /// Puts a message that is to be taken before every other one, because it takes no part in what is
  /// done in order. Returns false if `most` such messages wait already.
  bool put_between(Message message, std::size_t most) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || between_.size() >= most) return false;
      between_.push_back(std::move(message));
    }
    filled_.notify_one();
    return true;
  }
  /// Takes the next message; waits until there is one. Returns nothing once the mailbox is closed.
  std::optional<Message> take() {
    std::unique_lock lock(mutex_);
    // The control thread closes the mailbox when the controller is lost, so this wait ends within
    // its heartbeat timeout.
    filled_.wait(lock, [this] { return closed_ || !messages_.empty() || !between_.empty(); });
    if (closed_) return std::nullopt;
    auto& lane = between_.empty() ? messages_ : between_;
    Message message = std::move(lane.front());
    lane.pop_front();
    return message;
  }
  /// Returns false if `take` would wait.
  bool ready() const {
    std::lock_guard lock(mutex_);
    return closed_ || !messages_.empty() || !between_.empty();
  }
  /// Looks at, or takes from, the messages in order, under the lock; must not wait.
  template <class F>
  auto with(F&& look) {
    std::lock_guard lock(mutex_);
    return look(messages_);
  }
  template <class F>
  auto with(F&& look) const {
    std::lock_guard lock(mutex_);
    return look(messages_);
  }
  /// Ends all waiting; messages still inside are dropped.
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      messages_.clear();
      between_.clear();
    }
    filled_.notify_all();
  }
  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return messages_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Message> messages_;
  std::deque<Message> between_;
  bool closed_ = false;
};

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
class ControlThread {
 public:
  struct Handlers {  // on the control thread
    std::function<void()> on_ready;
    std::function<void(const wire::Header&, std::span<const std::byte>)> on_message;
    /// Called when the process leaves: the work loop and all waiting must come free.
    std::function<void()> on_stop;
    /// Returns the amount of work that the work loop has done so far; called from any thread.
    std::function<std::uint64_t()> progress;
  };

  explicit ControlThread(ProcessOptions options);
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

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
