#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

#include "transport/control/blob_store.h"
#include "transport/control/connection.h"
#include "transport/control/server.h"

namespace troupe::control {

inline constexpr std::uint32_t kBlobChunk = 256u << 10;  // bytes

struct BlobLimits {
  int credits = 8;  // chunks asked for and not yet here, over all fetches of a link together
  std::uint64_t max_bytes =
      4ull << 30;  // of one blob; more is refused before anything is allocated
};

/// Admission of a peer to a blob channel.
struct BlobPass {
  std::string refusal = {};   // why the peer is refused; "" = it is let in
  bool fetches_only = false;  // unknown which process this is: nothing is fetched from it
};

/// The binding end of the blob channel: sockets of its own beside the control plane's, so that
/// pictures never stand in the way of messages. Peers are named by the incarnation of their
/// process, the same that their control Connection has. That is no secret: who a peer is shows the
/// secret in its hello, which the welcome of its control link gave it. Both ends fetch by pulling
/// chunks, at most `credits` at once over a link, so a slow fetcher costs the holder nothing, and
/// many fetches no more than one. Threads as in Server.
class BlobServer {
 public:
  /// Same as Server's constructor. `store` must outlive the BlobServer.
  BlobServer(boost::asio::io_context& io, ServerOptions options, BlobStore& store,
             BlobLimits limits = {});
  ~BlobServer();

  std::string endpoint() const;
  bool connected(std::uint64_t incarnation) const;
  /// Sets the handler that decides who may come, and as what. Without a handler everybody may, as
  /// who he says he is. A process that has a link and comes again has lost that link at its own
  /// end: the new one takes its place.
  void admit(std::function<BlobPass(const PeerInfo&)> handler);

  /// Fetches what the peer holds. `bytes` is the expected length where it is known. The handler is
  /// called exactly once, within the deadline for the whole: with the blob, or with a failure
  /// (timeout, lost, not_found, bad_request: too big, protocol: length or checksum wrong). A peer
  /// that has not connected yet is waited for within the deadline.
  void fetch(std::uint64_t incarnation, BlobId id, std::optional<std::uint64_t> bytes,
             Milliseconds deadline, BlobHandler handler);
  void close();
  const Counters& counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

/// A controller's two servers, and where they are bound.
struct ServerPair {
  std::unique_ptr<Server> control;
  std::unique_ptr<BlobServer> blobs;  // at blob_endpoint_of(control->endpoint())
};

/// Binds a server at `options.endpoint` and its blob server beside it. For port 0, the system
/// chooses ports until one is found whose next one is free, too. Throws std::runtime_error, one
/// line, as Server's constructor does; where the port for blobs is what is in use, the error says
/// that it is needed.
ServerPair bind_servers(boost::asio::io_context& io, const ServerOptions& options,
                        BlobStore& store);

/// The connecting end. `options.incarnation` must be that of the process's control Connection, and
/// `options.hello.secret` what that was told.
class BlobConnection {
 public:
  BlobConnection(boost::asio::io_context& io, ConnectionOptions options, BlobStore& store,
                 BlobLimits limits = {});
  ~BlobConnection();

  /// Same as Connection::start; both may be null. Fetches asked for before the welcome wait for it.
  void start(std::function<void()> on_welcome = {},
             std::function<void(const wire::Failure&)> on_failed = {});
  bool connected() const;
  void on_lost(std::function<void(const Loss&)> handler);
  /// Same as BlobServer::fetch, but from the server.
  void fetch(BlobId id, std::optional<std::uint64_t> bytes, Milliseconds deadline,
             BlobHandler handler);
  void close();
  const Counters& counters() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::control
