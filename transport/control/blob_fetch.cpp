#include "transport/control/blob_fetch.h"

#include <algorithm>

#include "base/format.h"

namespace troupe::control {

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

}  // namespace troupe::control
