#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "actors/mailbox.h"
#include "transport/control/connection.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/tensor_messages.h"

namespace troupe::actors {

/// A question that touches tensors: the work loop answers it between two messages. Whoever claims
/// it first answers it; the second lane does at the deadline.
struct Inspection {
  using Question =
      std::variant<wire::GetTensors, wire::GetSlice, wire::GetLatentRows, wire::RenderLatents>;
  wire::Header header;
  Question question;

  bool claim() { return !claimed_.exchange(true); }

 private:
  std::atomic<bool> claimed_ = false;
};

/// Current activity of the work loop, which can be read without waiting for the loop, and the
/// faults that the loop is asked to meet. Thread-safe.
class WorkView {
 public:
  void begin(std::string what);
  void end();
  /// Returns what the work loop is doing and for how many seconds; empty when it is idle.
  std::pair<std::string, double> doing() const;
  std::uint64_t handled() const { return handled_.load(std::memory_order_relaxed); }

  void inject(const wire::InjectFault& fault);
  /// Waits while an injected hold keeps the loop at `here`: until the hold is released, its time is
  /// over, or `over`, which is called often, says that nobody waits for this any more. `tell` is
  /// called when the wait begins and when it has ended.
  void meet_hold(const wire::HoldPoint& here, const std::function<bool()>& over,
                 const std::function<void(bool held)>& tell);
  /// Meets injected faults before a task: waits out a delay, calling `tick` often, and throws an
  /// injected exception, or the error of a lost device, which is thrown before every later task as
  /// well. Returns true if the task is to meet a value that is not finite.
  bool meet_faults(bool is_micro_step, const std::function<void()>& tick);

 private:
  mutable std::mutex mutex_;
  std::string doing_;
  std::chrono::steady_clock::time_point since_;
  std::atomic<std::uint64_t> handled_ = 0;
  bool throws_ = false;
  bool poisons_ = false;
  bool device_lost_ = false;
  std::chrono::duration<double> delay_{0};
  std::optional<wire::InjectFault> hold_;  // to come
  bool held_ = false;
  std::condition_variable released_;
};

/// Inspection's part of the second lane, on the control thread. Answers from the mailbox and the
/// view of the work loop at once, and hands questions about tensors to the work loop.
class InspectLane {
 public:
  InspectLane(boost::asio::io_context& io, control::Connection& connection, Mailbox& mailbox,
              WorkView& view, bool rehearses)
      : io_(io), connection_(connection), mailbox_(mailbox), view_(view), rehearses_(rehearses) {}

  /// Takes a message about inspection; returns false for any other message.
  bool on_message(const wire::Header& header, std::span<const std::byte> payload);

 private:
  void hand_on(const wire::Header& header, Inspection::Question question);
  wire::MailboxReport mailbox_report() const;

  boost::asio::io_context& io_;
  control::Connection& connection_;
  Mailbox& mailbox_;
  WorkView& view_;
  bool rehearses_;
};

/// Nanoseconds of this process's monotonic clock.
std::int64_t monotonic_ns();

/// "step 5 patch 1", "text".
std::string task_text(const wire::Command& command);
/// Returns the point at which a hold may keep the work loop before this message; nothing if none
/// can.
std::optional<wire::HoldPoint> hold_point(const Message& message);
/// Describes any message: "job 3 step 5 patch 1", "loading", "beginning job 3", …; `name_of`
/// returns the name of a job.
std::string describe(const Message& message,
                     const std::function<std::string(std::uint64_t)>& name_of);

}  // namespace troupe::actors
