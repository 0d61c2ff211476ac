#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/calls/exchange.h"
#include "transport/control/blob_channel.h"
#include "transport/control/server.h"
#include "transport/control/zap.h"
#include "transport/wire/call_messages.h"

namespace troupe::runtime {

/// A call whose arguments are all here.
struct ReadyCall {
  control::PeerId caller = 0;
  std::uint64_t id = 0;
  std::string method;
  std::uint64_t types = 0;
  bool text = false;
  std::string arguments;
  control::Clock::time_point until;
};

struct CallServerOptions {
  std::string endpoint;       // ipc or tcp; port 0 = any
  std::string blob_endpoint;  // likewise
  std::string ticket;         // that callers must show
  bool insecure = false;
  std::shared_ptr<zmq::context_t> context;
  std::shared_ptr<control::Guard> guard;  // of the door's keys, on that context; null = none
  /// Calls that have come and are not answered, with their arguments: of a caller, and of all. One
  /// that comes alone may have as much as all.
  std::uint64_t waiting_bytes = 1ull << 30;
  std::uint64_t waiting_bytes_of_all = 4ull << 30;
};

/// The door of an actor's process for its callers: calls come in, results go out, and neither
/// passes the controller. Keeps each caller's order, also while a part of a call's arguments is
/// still being fetched. Lives on the control thread.
class CallServer {
 public:
  using Deliver = std::function<void(std::vector<ReadyCall>)>;

  /// Binds; throws std::runtime_error. `exchange` fetches what third processes hold.
  CallServer(boost::asio::io_context& io, CallServerOptions options, control::BlobStore& blobs,
             std::shared_ptr<calls::Exchange> exchange, Deliver deliver);
  ~CallServer();

  std::string endpoint() const { return server_->endpoint(); }
  std::string blob_endpoint() const { return blob_server_->endpoint(); }
  /// Sends results, those of one caller together. Large ones become blobs held here.
  void answer(std::vector<std::pair<control::PeerId, wire::CallResult>> results);
  void close();
  std::size_t callers() const { return server_->peers(); }

 private:
  struct Arriving {
    wire::ActorCall call;
    control::Clock::time_point until;
    std::vector<control::BlobBytes> parts;
    std::size_t missing = 0;
    std::string failure;
  };
  struct KnownCaller {
    std::uint64_t incarnation = 0;
    std::uint64_t newest = 0;  // call: their numbers rise, and one that comes again never runs
    std::deque<std::shared_ptr<Arriving>> arriving;  // in order; the first waits for its parts
    std::unordered_set<control::BlobId> held;        // results that it may still ask for
    control::OpenRequests waiting;                   // its calls that are not answered
  };

  void on_message(control::PeerId peer, const wire::Header& header,
                  std::span<const std::byte> payload);
  /// Counts the call; returns false if it is too much beside the calls that wait already.
  bool has_room(KnownCaller& caller, const wire::ActorCall& call);
  void fetch_parts(control::PeerId peer, const std::shared_ptr<Arriving>& arriving);
  void deliver_arrived(control::PeerId peer, std::vector<ReadyCall>& ready);
  void forget(control::PeerId peer);

  boost::asio::io_context& io_;
  control::BlobStore& blobs_;
  std::shared_ptr<calls::Exchange> exchange_;
  Deliver deliver_;
  std::uint64_t waiting_bytes_;
  std::uint64_t waiting_bytes_of_all_;
  control::OpenRequests::Sum waiting_;  // of all callers
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blob_server_;
  std::unordered_map<control::PeerId, KnownCaller> callers_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace troupe::runtime
