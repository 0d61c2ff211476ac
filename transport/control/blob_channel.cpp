#include "transport/control/blob_channel.h"

#include <boost/asio/post.hpp>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/format.h"
#include "transport/control/blob_fetch.h"

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
      const Link link{id, std::make_shared<BlobLink>(asker(id), limits.credits)};
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

  struct Link {
    PeerId peer = 0;
    std::shared_ptr<BlobLink> fetches;
  };

  boost::asio::io_context& io;
  Server server;
  BlobStore& store;
  BlobLimits limits;
  std::unordered_map<std::uint64_t, Link> peers;
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
