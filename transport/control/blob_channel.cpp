#include "transport/control/blob_channel.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <filesystem>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/format.h"
#include "base/xxh64.h"
#include "transport/control/endpoint.h"
#include "transport/wire/blob_messages.h"

namespace troupe::control {
namespace {

/// Few and large messages: little waits inside ZeroMQ, the rest is asked for later.
SocketOptions for_blobs(SocketOptions socket) {
  socket.high_water_mark = std::min(socket.high_water_mark, 64);
  return socket;
}

template <class T>
T with_blob_socket(T options) {
  options.socket = for_blobs(options.socket);
  return options;
}

/// Options for the server: a process may have any number of links, since some only fetch.
ServerOptions for_server(ServerOptions options) {
  options.one_link_per_process = false;
  return with_blob_socket(std::move(options));
}

}  // namespace

class BlobFetch;

/// One link of the blob channel, from the fetching end: at most `credits` chunks are asked for and
/// not yet here, over all fetches together, which take turns.
class BlobLink : public std::enable_shared_from_this<BlobLink> {
 public:
  using Ask = std::function<void(const wire::BlobRequest&, Milliseconds deadline, ReplyHandler)>;

  BlobLink(Ask ask, int credits) : ask_(std::move(ask)), credits_(credits) {}
  /// Asks for its chunks when its turn comes.
  void serve(const std::shared_ptr<BlobFetch>& fetch);

 private:
  void ask_more();
  void on_reply(const std::shared_ptr<BlobFetch>& fetch, const wire::BlobRequest& request,
                const Reply& reply);

  Ask ask_;
  int credits_;
  int outstanding_ = 0;
  std::deque<std::shared_ptr<BlobFetch>> turns_;
};

/// One fetch: wants chunks in order and puts them together. Calls its handler once.
class BlobFetch : public std::enable_shared_from_this<BlobFetch> {
 public:
  BlobFetch(boost::asio::io_context& io, BlobId id, std::optional<std::uint64_t> expected,
            BlobLimits limits, Milliseconds deadline, BlobHandler handler);

  /// Starts the clock of the deadline.
  void open();
  /// The next chunk to ask for. Nothing when all are, while the length is unknown, and at its end.
  std::optional<wire::BlobRequest> next();
  /// True while it is in the link's turns.
  bool& waits() { return waits_; }
  void on_chunk(const wire::BlobRequest& asked, const Reply& reply);
  void fail(wire::FailureCode code, const std::string& why);
  bool done() const { return !handler_; }
  Milliseconds left() const;

 private:
  bool within_limit();
  void finish(BlobResult result);

  boost::asio::steady_timer timer_;
  BlobId id_;
  std::optional<std::uint64_t> total_;
  BlobLimits limits_;
  Milliseconds allowed_;
  Clock::time_point until_;
  BlobHandler handler_;
  std::shared_ptr<std::string> bytes_ = std::make_shared<std::string>();
  std::optional<std::uint64_t> checksum_;
  Xxh64 hash_;
  std::uint64_t asked_ = 0;
  bool begun_ = false;
  bool waits_ = false;
};

/// Answers a request, on the holder's side. `respond` gets a BlobChunk or a Failure.
template <class Respond>
void serve_blob(const BlobStore& store, const wire::BlobRequest& request, Respond&& respond) {
  if (request.length == 0 || request.length > kBlobChunk) {
    return respond(wire::Failure{wire::FailureCode::bad_request,
                                 "[blob] a chunk has 1 to " + std::to_string(kBlobChunk) +
                                     " bytes, asked for " + std::to_string(request.length)});
  }
  const auto info = store.info(request.id);
  auto data = info ? store.read(request.id, request.offset, request.length) : std::nullopt;
  if (!data) {
    const std::string what =
        info ? "cannot be read at " + std::to_string(request.offset) : "is not held here";
    return respond(wire::Failure{wire::FailureCode::not_found,
                                 "[blob] " + std::to_string(request.id) + " " + what});
  }
  respond(wire::BlobChunk{info->bytes, info->checksum, request.offset, std::move(*data)});
}

using wire::FailureCode;

BlobFetch::BlobFetch(boost::asio::io_context& io, BlobId id, std::optional<std::uint64_t> expected,
                     BlobLimits limits, Milliseconds deadline, BlobHandler handler)
    : timer_(io),
      id_(id),
      total_(expected),
      limits_(limits),
      allowed_(deadline),
      until_(Clock::now() + deadline),
      handler_(std::move(handler)) {}

void BlobFetch::open() {
  timer_.expires_at(until_);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (error || self->done()) return;
    const std::string why = self->begun_ ? "not here" : "its holder has not connected";
    self->fail(FailureCode::timeout, fmt::format("{} within {} ms", why, self->allowed_.count()));
  });
}

Milliseconds BlobFetch::left() const {
  // A little beyond the deadline of the whole, which tells the better story.
  const auto rest = std::chrono::duration_cast<Milliseconds>(until_ - Clock::now());
  return std::max(rest, Milliseconds(0)) + Milliseconds(100);
}

bool BlobFetch::within_limit() {
  if (!total_ || *total_ <= limits_.max_bytes) return true;
  fail(FailureCode::bad_request,
       fmt::format("has {} bytes, the limit is {}", *total_, limits_.max_bytes));
  return false;
}

std::optional<wire::BlobRequest> BlobFetch::next() {
  // Until the length is known, one chunk goes ahead alone; an empty blob takes one request as well.
  if (done() || !within_limit() || (begun_ && (!total_ || asked_ >= *total_))) return std::nullopt;
  begun_ = true;
  const std::uint64_t offset = asked_;
  const auto length = static_cast<std::uint32_t>(
      total_ && *total_ > 0 ? std::min<std::uint64_t>(kBlobChunk, *total_ - offset) : kBlobChunk);
  asked_ += length;
  return wire::BlobRequest{id_, offset, length};
}

void BlobFetch::on_chunk(const wire::BlobRequest& asked, const Reply& reply) {
  if (done()) return;
  if (!reply) return fail(reply.failure().code, reply.failure().what);
  const auto chunk = reply.as<wire::BlobChunk>();
  if (total_ && *total_ != chunk.total) {
    return fail(FailureCode::protocol,
                fmt::format("has {} bytes, expected {}", chunk.total, *total_));
  }
  total_ = chunk.total;
  if (!within_limit()) return;
  if (!checksum_) checksum_ = chunk.checksum;
  const std::uint64_t due =
      std::min<std::uint64_t>(asked.length, chunk.total - std::min(chunk.total, asked.offset));
  // Links keep order, so chunks arrive in the order asked for.
  if (chunk.checksum != *checksum_ || chunk.offset != asked.offset ||
      asked.offset != bytes_->size() || chunk.data.size() != due) {
    return fail(FailureCode::protocol, fmt::format("came with a wrong piece at {}", asked.offset));
  }
  if (bytes_->empty())
    bytes_->reserve(static_cast<std::size_t>(std::min<std::uint64_t>(chunk.total, 64u << 20)));
  bytes_->append(chunk.data);
  hash_.update(chunk.data.data(), chunk.data.size());
  if (bytes_->size() < *total_) return;
  if (hash_.digest() != *checksum_)
    return fail(FailureCode::protocol, "came damaged: its checksum is wrong");
  finish({bytes_, {}});
}

void BlobFetch::fail(FailureCode code, const std::string& why) {
  finish({nullptr, {code, fmt::format("[blob] {}: {}", id_, why)}});
}

void BlobFetch::finish(BlobResult result) {
  if (done()) return;
  timer_.cancel();
  const auto handler = std::exchange(handler_, nullptr);
  handler(std::move(result));
}

void BlobLink::serve(const std::shared_ptr<BlobFetch>& fetch) {
  if (!std::exchange(fetch->waits(), true)) turns_.push_back(fetch);
  ask_more();
}

void BlobLink::ask_more() {
  while (outstanding_ < credits_ && !turns_.empty()) {
    const auto fetch = std::move(turns_.front());
    turns_.pop_front();
    fetch->waits() = false;
    const auto request = fetch->next();
    if (!request) continue;
    ++outstanding_;
    ask_(*request, fetch->left(),
         [self = shared_from_this(), fetch, request = *request](const Reply& reply) {
           self->on_reply(fetch, request, reply);
         });
    if (!std::exchange(fetch->waits(), true)) turns_.push_back(fetch);
  }
}

void BlobLink::on_reply(const std::shared_ptr<BlobFetch>& fetch, const wire::BlobRequest& request,
                        const Reply& reply) {
  --outstanding_;
  try {
    fetch->on_chunk(request, reply);
  } catch (...) {
    serve(fetch);
    throw;
  }
  serve(fetch);
}

namespace {

using Fetches = std::vector<std::shared_ptr<BlobFetch>>;

void fail_all(Fetches& fetches, const wire::Failure& failure) {
  for (const auto& fetch : std::exchange(fetches, {}))
    fetch->fail(failure.code, failure.what);
}

}  // namespace

class BlobServer::Impl : public std::enable_shared_from_this<BlobServer::Impl> {
 public:
  Impl(boost::asio::io_context& io, ServerOptions options, BlobStore& store_, BlobLimits limits_)
      : io(io), server(io, for_server(std::move(options))), store(store_), limits(limits_) {
    server.on_connect([this](const PeerInfo& peer) { return refusal(peer); });
    server.on_ready([this](PeerId id) {
      if (fetchers.contains(id)) return;
      const std::uint64_t incarnation = server.info(id)->incarnation;
      // Its link has broken at its own end before it was noticed here.
      if (const auto old = peers.find(incarnation); old != peers.end())
        server.drop(old->second.peer, "the process has come anew");
      const PeerFetches link{id, std::make_shared<BlobLink>(asker(id), limits.credits)};
      peers[incarnation] = link;
      const auto found = waiting.find(incarnation);
      const Fetches due = found == waiting.end() ? Fetches{} : std::move(found->second);
      if (found != waiting.end()) waiting.erase(found);
      for (const auto& fetch : due)
        link.fetches->serve(fetch);
    });
    server.on_lost([this](PeerId id, const Loss&) {
      fetchers.erase(id);
      std::erase_if(peers, [&](const auto& entry) { return entry.second.peer == id; });
    });
    server.on_message([this](PeerId id, const wire::Header& header,
                             std::span<const std::byte> payload) {
      if (header.kind != wire::Kind::blob_request || !header.is_request()) {
        throw wire::WireError(wire::WireErrc::wrong_kind, "[blob] " + wire::to_string(header.kind) +
                                                              " has no place on the blob channel");
      }
      serve_blob(store, wire::decode<wire::BlobRequest>(payload),
                 [&](const auto& response) { server.reply(id, header, response); });
    });
  }

  std::optional<std::string> refusal(const PeerInfo& peer) {
    const BlobPass pass = admit ? admit(peer) : BlobPass{};
    if (!pass.refusal.empty()) return pass.refusal;
    if (pass.fetches_only) fetchers.insert(peer.id);
    return std::nullopt;
  }

  BlobLink::Ask asker(PeerId id) {
    return [weak = weak_from_this(), id](const wire::BlobRequest& request, Milliseconds deadline,
                                         ReplyHandler handler) {
      if (const auto self = weak.lock())
        self->server.request(id, request, deadline, std::move(handler));
    };
  }

  struct PeerFetches {
    PeerId peer = 0;
    std::shared_ptr<BlobLink> fetches;
  };

  boost::asio::io_context& io;
  Server server;
  BlobStore& store;
  BlobLimits limits;
  std::unordered_map<std::uint64_t, PeerFetches> peers;
  std::unordered_set<PeerId> fetchers;  // that belong to no link of a process
  std::unordered_map<std::uint64_t, Fetches> waiting;
  std::function<BlobPass(const PeerInfo&)> admit;
};

BlobServer::BlobServer(boost::asio::io_context& io, ServerOptions options, BlobStore& store,
                       BlobLimits limits)
    : impl_(std::make_shared<Impl>(io, std::move(options), store, limits)) {}
BlobServer::~BlobServer() = default;

std::string BlobServer::endpoint() const {
  return impl_->server.endpoint();
}
bool BlobServer::connected(std::uint64_t incarnation) const {
  return impl_->peers.contains(incarnation);
}
void BlobServer::admit(std::function<BlobPass(const PeerInfo&)> handler) {
  impl_->admit = std::move(handler);
}
const Counters& BlobServer::counters() const {
  return impl_->server.counters();
}

void BlobServer::fetch(std::uint64_t incarnation, BlobId id, std::optional<std::uint64_t> bytes,
                       Milliseconds deadline, BlobHandler handler) {
  const auto fetch = std::make_shared<BlobFetch>(impl_->io, id, bytes, impl_->limits, deadline,
                                                 std::move(handler));
  fetch->open();
  boost::asio::post(impl_->io, [weak = std::weak_ptr(impl_), fetch, incarnation] {
    const auto impl = weak.lock();
    if (!impl) return;
    const auto found = impl->peers.find(incarnation);
    if (found != impl->peers.end()) return found->second.fetches->serve(fetch);
    // Of those who never open a blob link nothing is kept beyond their fetches.
    for (auto& [other, queue] : impl->waiting)
      std::erase_if(queue, [](const auto& old) { return old->done(); });
    std::erase_if(impl->waiting, [](const auto& entry) { return entry.second.empty(); });
    impl->waiting[incarnation].push_back(fetch);
  });
}

void BlobServer::close() {
  impl_->server.close();
  impl_->peers.clear();
  for (auto& [incarnation, fetches] : std::exchange(impl_->waiting, {})) {
    fail_all(fetches, {wire::FailureCode::lost, "closed"});
  }
}

namespace {

constexpr int kMostPairs = 20;  // of ports that are tried where any will do

/// Returns the error of a port for blobs that is in use. Whoever starts a controller gives one
/// port: the other one is named as the next.
std::runtime_error no_port_for_blobs(const std::string& endpoint, std::string why) {
  constexpr std::string_view kTag = "[control] ";
  if (why.starts_with(kTag)) why.erase(0, kTag.size());
  return std::runtime_error("[control] " + endpoint +
                            " needs the next port, too, for blobs: " + why);
}

}  // namespace

ServerPair bind_servers(boost::asio::io_context& io, const ServerOptions& options,
                        BlobStore& store) {
  for (int attempt = 1;; ++attempt) {
    ServerPair pair{.control = std::make_unique<Server>(io, options), .blobs = nullptr};
    auto beside = options;
    try {
      beside.endpoint = blob_endpoint_of(pair.control->endpoint());
      pair.blobs = std::make_unique<BlobServer>(io, beside, store);
      return pair;
    } catch (const std::runtime_error& error) {
      std::error_code ignored;
      const auto file = parse_endpoint(pair.control->endpoint()).path;
      if (!file.empty()) std::filesystem::remove(file, ignored);  // while its socket lives
      if (options.endpoint.ends_with(":0") && attempt < kMostPairs) continue;
      const bool none = beside.endpoint == options.endpoint;
      if (none || parse_endpoint(options.endpoint).ipc) throw;
      throw no_port_for_blobs(options.endpoint, error.what());
    }
  }
}

class BlobConnection::Impl : public std::enable_shared_from_this<BlobConnection::Impl> {
 public:
  Impl(boost::asio::io_context& io, ConnectionOptions options, BlobStore& store_,
       BlobLimits limits_)
      : io(io),
        connection(io, with_blob_socket(std::move(options))),
        store(store_),
        limits(limits_) {
    connection.on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
      if (header.kind != wire::Kind::blob_request || !header.is_request()) {
        throw wire::WireError(wire::WireErrc::wrong_kind, "[blob] " + wire::to_string(header.kind) +
                                                              " has no place on the blob channel");
      }
      serve_blob(store, wire::decode<wire::BlobRequest>(payload),
                 [&](const auto& response) { connection.reply(header, response); });
    });
  }

  boost::asio::io_context& io;
  Connection connection;
  BlobStore& store;
  BlobLimits limits;
  std::shared_ptr<BlobLink> link;
  Fetches waiting;
  bool settled = false;  // welcomed or failed
};

BlobConnection::BlobConnection(boost::asio::io_context& io, ConnectionOptions options,
                               BlobStore& store, BlobLimits limits)
    : impl_(std::make_shared<Impl>(io, std::move(options), store, limits)) {
  impl_->link = std::make_shared<BlobLink>(
      [weak = std::weak_ptr(impl_)](const wire::BlobRequest& request, Milliseconds deadline,
                                    ReplyHandler handler) {
        if (const auto impl = weak.lock())
          impl->connection.request(request, deadline, std::move(handler));
      },
      limits.credits);
}
BlobConnection::~BlobConnection() = default;

void BlobConnection::start(std::function<void()> on_welcome,
                           std::function<void(const wire::Failure&)> on_failed) {
  Impl* impl = impl_.get();
  impl->connection.start(
      [impl, on_welcome = std::move(on_welcome)](const wire::Welcome&) {
        impl->settled = true;
        for (const auto& fetch : std::exchange(impl->waiting, {}))
          impl->link->serve(fetch);
        if (on_welcome) on_welcome();
      },
      [impl, on_failed = std::move(on_failed)](const wire::Failure& failure) {
        impl->settled = true;
        fail_all(impl->waiting, failure);
        if (on_failed) on_failed(failure);
      });
}

bool BlobConnection::connected() const {
  return impl_->connection.connected();
}
void BlobConnection::on_lost(std::function<void(const Loss&)> handler) {
  impl_->connection.on_lost(std::move(handler));
}
const Counters& BlobConnection::counters() const {
  return impl_->connection.counters();
}

void BlobConnection::fetch(BlobId id, std::optional<std::uint64_t> bytes, Milliseconds deadline,
                           BlobHandler handler) {
  const auto fetch = std::make_shared<BlobFetch>(impl_->io, id, bytes, impl_->limits, deadline,
                                                 std::move(handler));
  fetch->open();
  boost::asio::post(impl_->io, [weak = std::weak_ptr(impl_), fetch] {
    const auto impl = weak.lock();
    if (!impl) return;
    if (impl->settled) return impl->link->serve(fetch);
    impl->waiting.push_back(fetch);
  });
}

void BlobConnection::close() {
  impl_->connection.close();
  impl_->settled = true;
  fail_all(impl_->waiting, {wire::FailureCode::lost, "closed"});
}

}  // namespace troupe::control
