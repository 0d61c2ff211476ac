#include "transport/tensor/pair.h"

#include <algorithm>
#include <string>

namespace troupe::tensor {
namespace {

Part header_part(auto& header, std::size_t moved) {
  auto* bytes = reinterpret_cast<std::byte*>(&header);
  const std::size_t done = std::min(moved, sizeof header);
  return {bytes + done, sizeof header - done};
}

Part payload_part(const Transfer& transfer, std::size_t header_size, std::size_t moved,
                  std::size_t budget) {
  const std::size_t done = moved > header_size ? moved - header_size : 0;
  return {transfer.data + done, std::min(transfer.bytes - done, budget)};
}

/// Bytes of `moved` that came after the header's.
std::size_t beyond(const Part& header, std::size_t moved) {
  return moved > header.size ? moved - header.size : 0;
}

}  // namespace

void Pair::Lane::push(Transfer transfer) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(transfer));
  count_.store(queue_.size(), std::memory_order_release);
}

Transfer* Pair::Lane::head() {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard lock(mutex_);
  return &queue_.front();
}

void Pair::Lane::pop() {
  moved = 0;
  ++sequence;
  std::lock_guard lock(mutex_);
  queue_.pop_front();
  count_.store(queue_.size(), std::memory_order_release);
}

bool Pair::advance(std::size_t budget, const Ended& ended) {
  const bool more_out = advance_sends(budget, ended);
  const bool more_in = advance_receives(budget, ended);
  return more_out || more_in;
}

bool Pair::advance_sends(std::size_t budget, const Ended& ended) {
  while (Transfer* transfer = outgoing_.head()) {
    if (transfer->gated && !transfer->operation->gate_open) return false;
    if (budget == 0) return true;
    if (outgoing_.moved == 0) outgoing_.header = {transfer->bytes, outgoing_.sequence, kMagic};
    const Part header = header_part(outgoing_.header, outgoing_.moved);
    const Part payload = payload_part(*transfer, sizeof(Header), outgoing_.moved, budget);
    const std::size_t written = stream_->write(header, payload);
    if (written == Stream::kEnded) {
      if (peer_closed_) throw TransferError(Failure::peer_left, peer_, "the peer left the group");
      return false;
    }
    outgoing_.moved += written;
    tally_.bytes_sent.fetch_add(beyond(header, written), std::memory_order_relaxed);
    if (outgoing_.moved == sizeof(Header) + transfer->bytes) {
      tally_.messages_sent.fetch_add(1, std::memory_order_relaxed);
      ended(*transfer);
      outgoing_.pop();
    } else if (written < header.size + payload.size) {
      return false;
    }
    budget -= std::min(budget, written);
  }
  return false;
}

bool Pair::advance_receives(std::size_t budget, const Ended& ended) {
  while (Transfer* transfer = incoming_.head()) {
    if (budget == 0) return true;
    const std::size_t before = incoming_.moved;
    const Part header = header_part(incoming_.header, before);
    const Part payload = payload_part(*transfer, sizeof(Header), before, budget);
    const std::size_t got = stream_->read(header, payload);
    if (got == Stream::kEnded) {
      if (peer_closed_) throw TransferError(Failure::peer_left, peer_, "the peer left the group");
      return false;
    }
    incoming_.moved += got;
    if (before < sizeof(Header) && incoming_.moved >= sizeof(Header)) check_header(*transfer);
    tally_.bytes_received.fetch_add(beyond(header, got), std::memory_order_relaxed);
    if (incoming_.moved == sizeof(Header) + transfer->bytes) {
      tally_.messages_received.fetch_add(1, std::memory_order_relaxed);
      ended(*transfer);
      incoming_.pop();
    } else if (got < header.size + payload.size && !(peer_closed_ && got > 0)) {
      return false;
    }
    budget -= std::min(budget, got);
  }
  return false;
}

void Pair::check_header(const Transfer& transfer) {
  const Header& header = incoming_.header;
  if (header.magic != kMagic || header.sequence != incoming_.sequence)
    throw TransferError(Failure::mismatch, peer_, "the byte stream is out of step");
  if (header.bytes != transfer.bytes)
    throw TransferError(Failure::mismatch, peer_,
                        "the peer sent a message of " + std::to_string(header.bytes) +
                            " bytes where " + std::to_string(transfer.bytes) + " were awaited");
}

void Pair::peer_closed() {
  peer_closed_ = true;
  stream_->peer_closed();
}

void Pair::clear(const Ended& ended) {
  for (Lane* lane : {&outgoing_, &incoming_}) {
    while (Transfer* transfer = lane->head()) {
      ended(*transfer);
      lane->pop();
    }
  }
}

}  // namespace troupe::tensor
