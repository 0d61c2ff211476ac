#pragma once
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/calls/call_connection.h"
#include "transport/calls/typed_request.h"
#include "transport/control/blob_channel.h"
#include "transport/control/shared_loop.h"

namespace troupe::calls {

struct ExchangeTools {
  std::shared_ptr<control::SharedLoop> loop;
  /// Returns the link to the controller; null while there is none. Called on the loop's thread.
  std::function<control::Connection*()> controller;
  control::BlobStore& blobs;  // values that this process holds for others
  std::string name;           // told to actors: "client", "actor 3"
  control::SocketOptions socket;
};

/// Proof that a blob link belongs to a link which stands: incarnation and secret of that link.
struct LinkProof {
  std::uint64_t incarnation = 0;
  std::string secret;
};

/// A process's end of all its calls to actors: requests to the controller, and a line to each
/// actor. Made and closed on the thread that runs the loop; the functions of `detail::Caller` may
/// be called from any thread until the end, after `close` with errors as answers.
class Exchange final : public detail::Caller {
 public:
  static std::shared_ptr<Exchange> make(ExchangeTools tools);
  ~Exchange() override;

  /// Makes everything under way fail with this error. The loop is not touched afterwards.
  void close(const Error& why);
  /// Takes a message of the controller's link. False when the message is not for an exchange.
  bool on_message(const wire::Header& header, std::span<const std::byte> payload);

  bool on_own_thread() const override { return tools_.loop->running_here(); }
  bool wait(detail::CallState& state, std::chrono::steady_clock::time_point until) override;
  std::shared_ptr<detail::CallState> call(detail::CallRequest request) override;
  std::shared_ptr<detail::CallState> spawn(detail::SpawnRequest request) override;
  Result<std::uint64_t> find(const std::string& name, const std::string& class_name,
                             Milliseconds deadline) override;
  Result<Unit> kill(std::uint64_t actor, bool restart) override;
  Result<std::vector<UserActorInfo>> list() override;
  Result<std::vector<ActorClassInfo>> classes() override;
  Result<Unit> watch(std::uint64_t actor, std::function<void(const Death&)> told) override;

  /// Releases a held value at its holder; `fetch` gets its bytes. From any thread.
  void release(const Holder& holder, control::BlobId blob);
  Result<std::shared_ptr<const std::string>> fetch(const Holder& holder, control::BlobId blob,
                                                   std::uint64_t bytes, Milliseconds deadline);

  // For lines, on the loop's thread.
  boost::asio::io_context& io() { return tools_.loop->io(); }
  control::BlobStore& blobs() { return tools_.blobs; }
  std::weak_ptr<Exchange> weak() { return std::static_pointer_cast<Exchange>(shared_from_this()); }
  control::ConnectionOptions connection_options(const std::string& endpoint,
                                                const std::string& ticket,
                                                const std::string& keys) const;
  void expect(std::chrono::steady_clock::time_point until, std::uint64_t actor, std::uint64_t call);
  void pump_later(std::uint64_t actor);  // from any thread
  /// Opens a blob link to an actor's door. `link`: the link to that actor, so that the actor may
  /// fetch from here; with an empty secret there is none, and this end fetches only.
  control::BlobConnection& open_blob_link(const BlobDoor& door, const LinkProof& link);
  /// Notes that a link to an actor stands, and so its blobs may go over a blob link that belongs to
  /// it.
  void link_stands(const std::string& blob_endpoint, LinkProof link);
  /// Notes that the link of this endpoint has ended, and closes its blob link.
  void link_ended(const std::string& blob_endpoint);
  void fetch_blob(const BlobDoor& door, control::BlobId blob, std::uint64_t bytes,
                  control::Milliseconds deadline, control::BlobHandler handler);
  template <class Answer, class M>
  void request(const M& message, control::Milliseconds deadline,
               std::function<void(Result<Answer>)> handler);

 private:
  /// Time that a thread which waits for the loop gives it beyond the loop's own deadline.
  static constexpr control::Milliseconds kThreadMargin{2'000};

  explicit Exchange(ExchangeTools tools);
  template <class Answer, class M>
  Result<Answer> ask(M message, control::Milliseconds deadline);
  bool post(std::function<void()> action);
  void drain();
  CallConnection& line(std::uint64_t actor);
  void arm();
  void forget_answered();

  struct Due {
    std::chrono::steady_clock::time_point until;
    std::uint64_t actor;
    std::uint64_t call;
    bool operator>(const Due& other) const { return until > other.until; }
  };
  struct Incoming {
    detail::CallRequest request;
    std::shared_ptr<detail::CallState> state;
  };

  ExchangeTools tools_;
  std::mutex mutex_;  // of what comes from other threads
  std::vector<Incoming> incoming_;
  bool drain_posted_ = false;
  std::optional<Error> closed_;
  std::unordered_map<std::uint64_t, std::shared_ptr<CallConnection>> lines_;
  std::map<std::string, std::shared_ptr<control::BlobConnection>> blob_links_;  // by end and secret
  std::map<std::string, LinkProof> standing_;  // by the blobs' endpoint
  struct Watcher {
    std::function<void(const Death&)> told;
    std::shared_ptr<control::SharedLoop::LoopPin> own_thread;  // for `told`, as LoopPin says
  };
  std::map<std::uint64_t, std::vector<Watcher>> watchers_;
  std::vector<Due> due_;          // a heap, the earliest first
  std::size_t tidied_at_ = 1024;  // size of due_ at which answered calls go
  std::optional<boost::asio::steady_timer> timer_;
  std::chrono::steady_clock::time_point armed_for_ = std::chrono::steady_clock::time_point::max();
};

template <class Answer, class M>
void Exchange::request(const M& message, control::Milliseconds deadline,
                       std::function<void(Result<Answer>)> handler) {
  control::Connection* controller = tools_.controller();
  if (!controller)
    return handler(Error{ErrorCode::lost, "[actors] there is no link to the controller"});
  typed_request<Answer>(*controller, message, deadline, std::move(handler));
}

}  // namespace troupe::calls
