#pragma once
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>

#include "base/xxh64.h"
#include "transport/control/blob_channel.h"
#include "transport/wire/blob_messages.h"

namespace troupe::control {

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

}  // namespace troupe::control
