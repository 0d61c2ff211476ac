#include "transport/control/mux.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/format.h"

namespace troupe::control {
namespace {

/// Most bytes of a message of carried frames, heads of entries included.
constexpr std::size_t kMuxMost = wire::kMaxPayload - 64;
constexpr std::size_t kEntryHead = 9;  // slot, more, length
/// Bytes that are sent without waiting for the end of a pause.
constexpr std::size_t kMuxAtOnce = 256u << 10;

}  // namespace

void MuxWriter::put(std::uint32_t slot, bool more, std::string_view bytes) {
  const auto size = kEntryHead + bytes.size();
  if (messages_.empty() || last_bytes_ + size > kMuxMost) {
    messages_.emplace_back();
    last_bytes_ = 0;
  }
  last_bytes_ += size;
  bytes_ += size;
  auto& entry = messages_.back().frames.emplace_back();
  entry.slot = slot;
  entry.more = more;
  entry.bytes.assign(bytes);
}

void MuxWriter::add(std::uint32_t slot, std::string_view frame) {
  constexpr std::size_t kPiece = kMuxMost - kEntryHead;
  for (; frame.size() > kPiece; frame.remove_prefix(kPiece))
    put(slot, /*more=*/true, frame.substr(0, kPiece));
  put(slot, /*more=*/false, frame);
}

std::vector<wire::MuxFrames> MuxWriter::take() {
  last_bytes_ = bytes_ = 0;
  return std::exchange(messages_, {});
}

std::optional<std::string> MuxReader::take(wire::MuxFrame entry) {
  if (begun_) {
    if (entry.slot != begun_->slot || entry.bytes.empty())
      throw wire::WireError(wire::WireErrc::bad_value,
                            fmt::format("[mux] a frame of slot {} ends in its midst: slot {}",
                                        begun_->slot, entry.slot));
    begun_->bytes += entry.bytes;
    if (begun_->bytes.size() > wire::kMaxFrame)
      throw wire::WireError(wire::WireErrc::too_large,
                            fmt::format("[mux] a frame of slot {} is longer than {} bytes",
                                        entry.slot, wire::kMaxFrame));
    if (entry.more) return std::nullopt;
    auto whole = std::move(begun_->bytes);
    begun_.reset();
    return whole;
  }
  if (!entry.more) return std::move(entry.bytes);
  if (entry.bytes.empty())
    throw wire::WireError(wire::WireErrc::bad_value,
                          fmt::format("[mux] an empty piece of slot {}", entry.slot));
  begun_ = std::move(entry);
  return std::nullopt;
}

MuxSender::MuxSender(boost::asio::io_context& io, std::chrono::microseconds pause, Send send)
    : io_(io), timer_(io), pause_(pause), send_(std::move(send)) {}

void MuxSender::add(std::uint32_t slot, std::string_view frame) {
  waiting_.add(slot, frame);
  if (waiting_.bytes() > kMuxAtOnce) return flush();
  schedule();
}

void MuxSender::schedule() {
  if (std::exchange(scheduled_, true)) return;
  const auto due = [this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (alive.expired()) return;
    scheduled_ = false;
    if (!error) flush();
  };
  // What this turn of the loop still brings goes along.
  if (Clock::now() >= next_) return boost::asio::post(io_, [due] { due({}); });
  timer_.expires_at(next_);
  timer_.async_wait(due);
}

void MuxSender::flush() {
  if (waiting_.empty()) return;
  next_ = Clock::now() + pause_;
  for (const auto& message : waiting_.take())
    send_(message);
}

}  // namespace troupe::control
