#pragma once
#include <boost/asio/steady_timer.hpp>
#include <memory>

#include "transport/control/blob_channel.h"
#include "transport/control/xxh64.h"
#include "transport/wire/blob_messages.h"

namespace troupe::control {

/// One fetch: asks for chunks in order, at most `credits` ahead, and puts them together. Calls its
/// handler once.
class BlobFetch : public std::enable_shared_from_this<BlobFetch> {
 public:
  using Ask = std::function<void(const wire::BlobRequest&, Milliseconds deadline, ReplyHandler)>;

  BlobFetch(boost::asio::io_context& io, BlobId id, std::optional<std::uint64_t> expected,
            BlobLimits limits, Milliseconds deadline, BlobHandler handler);

  /// Starts the clock of the deadline.
  void open();
  /// The holder can be asked.
  void begin(Ask ask);
  void fail(wire::FailureCode code, const std::string& why);
  bool begun() const { return static_cast<bool>(ask_); }
  bool done() const { return !handler_; }

 private:
  void ask_more();
  void on_chunk(std::uint64_t offset, std::uint32_t length, const Reply& reply);
  void finish(BlobResult result);
  Milliseconds left() const;

  boost::asio::steady_timer timer_;
  BlobId id_;
  std::optional<std::uint64_t> total_;
  BlobLimits limits_;
  Milliseconds allowed_;
  Clock::time_point until_;
  BlobHandler handler_;
  Ask ask_;
  std::shared_ptr<std::string> bytes_ = std::make_shared<std::string>();
  std::optional<std::uint64_t> checksum_;
  Xxh64 hash_;
  std::uint64_t asked_ = 0;
  int outstanding_ = 0;
};

/// The holder's side: what is answered to a request. `respond` gets a BlobChunk or a Failure.
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
