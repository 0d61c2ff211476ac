#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "client/convert.h"
#include "transport/calls/exchange.h"
#include "transport/calls/typed_request.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/control/shared_loop.h"

namespace troupe::client {

// ZeroMQ tries again and again where nobody listens. These ask the system itself, once, so that a
// client is told at once.

/// Returns why nobody can be at an ipc endpoint, or at one on a loopback address ("Connection
/// refused"), or nothing.
std::string listener_missing(const control::Endpoint& endpoint);

/// Calls `missing` on the loop when the host of a tcp endpoint does not exist, or nobody is at its
/// port. If somebody answers there, or nobody says no, `missing` is never called.
void watch_for_missing_listener(boost::asio::io_context& io, const control::Endpoint& endpoint,
                                std::function<void(const std::string& why)> missing);

}  // namespace troupe::client

namespace troupe {

/// Deadline for a controller's answer.
inline constexpr std::chrono::milliseconds kAnswerDeadline = std::chrono::seconds(30);
/// Deadline for a blob to arrive.
inline constexpr std::chrono::milliseconds kBlobDeadline = std::chrono::minutes(10);

}  // namespace troupe

namespace troupe::client {

/// One link to a controller with the thread that it lives on: control plane, and the blob channel
/// once it is needed. Every call here may come from any thread, except where it says "link's
/// thread": there a handler of its loop runs, on that thread or on one that waits for a call.
class Link {
 public:
  struct Handlers {  // all on the link's thread
    std::function<void(wire::JobProgress)> on_progress;
    std::function<void(wire::JobFinished)> on_finished;
    std::function<void(const Error&)> on_lost;
    std::function<void(const std::string&)> on_notice = {};
  };

  /// Connects. Returns null, with `error` set, where that does not work within `timeout` or before
  /// `stop` is asked for.
  /// `keys`: a folder of keys for tcp, or empty.
  static std::unique_ptr<Link> open(const std::string& endpoint, control::Milliseconds timeout,
                                    Handlers handlers, Error& error, const std::string& keys = {},
                                    const std::stop_token& stop = {});
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Asks and waits for the answer, for `deadline` at most. `then` sees a good answer first, on the
  /// link's thread, before any later message is looked at.
  template <class Answer, class M>
  Result<Answer> ask(M message, control::Milliseconds deadline,
                     std::function<void(const Answer&)> then = {});

  /// Link's thread. Asks; the handler is called exactly once, at once if the link is lost.
  template <class Answer, class M>
  void request(const M& message, control::Milliseconds deadline,
               std::function<void(Result<Answer>)> handler);

  /// Runs `action` on the link's thread.
  void post(std::function<void()> action);
  /// Keeps the link's handlers on its own thread, not on one that waits, while the result is alive:
  /// for callbacks of users.
  std::shared_ptr<void> own_thread() {
    return std::make_shared<control::SharedLoop::LoopPin>(loop_);
  }
  bool on_thread() const { return loop_->running_here(); }

  /// Link's thread. Fetches one blob of the controller's; the handler is called exactly once,
  /// later.
  void fetch(const wire::BlobRef& blob, control::BlobHandler handler);
  /// Holds bytes for the controller to fetch, until dropped.
  control::BlobId hold(std::string bytes);
  void drop(control::BlobId blob) { store_.remove(blob); }

  /// Returns the calls of actors over this link; valid once `open` has returned.
  const std::shared_ptr<calls::Exchange>& exchange() const { return exchange_; }

  const std::string& endpoint() const { return endpoint_; }
  /// Returns the id of the journal that the controller keeps its jobs in; empty = it forgets them
  /// when it ends.
  const std::string& journal() const { return journal_; }
  /// Returns the series that the controller's job numbers belong to: `journal`, or else its
  /// process.
  const std::string& job_series() const { return job_series_; }
  bool lost() const { return is_lost_; }
  /// True if the link is lost and another controller answers at its endpoint.
  bool replaced() const { return replaced_; }

 private:
  Link(std::string endpoint, Handlers handlers);
  /// Handler of how connecting ended: called exactly once.
  using Outcome = std::function<void(std::optional<Error>)>;
  void start(control::Milliseconds timeout, Outcome outcome);
  void settle(std::optional<Error> failed);
  void give_up(Error why);
  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  void lose(Error error);
  void open_blobs();
  wire::Hello hello() const;

  std::string endpoint_;
  std::string journal_;  // set before `open` returns
  std::string job_series_;
  Handlers handlers_;
  std::optional<control::ClientKeys> keys_;
  std::uint64_t incarnation_;
  std::shared_ptr<control::SharedLoop> loop_;
  control::SocketOptions socket_;  // of all connections of the link
  control::BlobStore store_;
  std::unique_ptr<control::Connection> control_;
  std::unique_ptr<control::BlobConnection> blobs_;
  std::shared_ptr<calls::Exchange> exchange_;
  Outcome outcome_;            // its thread's; null once it was called
  std::optional<Error> lost_;  // its thread's
  std::atomic<bool> is_lost_ = false;
  std::atomic<bool> replaced_ = false;  // before the loss is told
  std::thread thread_;
};

template <class Answer, class M>
void Link::request(const M& message, control::Milliseconds deadline,
                   std::function<void(Result<Answer>)> handler) {
  if (lost_) return handler(*lost_);
  calls::typed_request<Answer>(*control_, message, deadline, std::move(handler));
}

template <class Answer, class M>
Result<Answer> Link::ask(M message, control::Milliseconds deadline,
                         std::function<void(const Answer&)> then) {
  constexpr control::Milliseconds kThreadMargin{2000};
  auto promise = std::make_shared<std::promise<Result<Answer>>>();
  auto future = promise->get_future();
  post([this, promise, message = std::move(message), deadline, then = std::move(then)] {
    request<Answer>(message, deadline, [promise, then](Result<Answer> answer) {
      if (answer && then) then(answer.value());
      promise->set_value(std::move(answer));
    });
  });
  if (future.wait_for(deadline + kThreadMargin) == std::future_status::ready) return future.get();
  return Error{ErrorCode::timeout, "[client] " + endpoint_ + ": no answer within " +
                                       std::to_string(deadline.count()) + " ms"};
}

}  // namespace troupe::client
