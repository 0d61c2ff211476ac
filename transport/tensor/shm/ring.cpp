#include "transport/tensor/shm/ring.h"

#include <algorithm>
#include <cstring>

namespace troupe::tensor::shm {
namespace {

/// Bytes between two publications of a long write or read, so that both ends copy at once.
constexpr std::size_t kStride = 128u << 10;

struct Cursor {
  Part first;
  Part second;

  std::size_t left() const { return first.size + second.size; }

  /// The next piece of at most `limit` bytes.
  Part take(std::size_t limit) {
    Part& part = first.size > 0 ? first : second;
    const Part piece{part.data, std::min(part.size, limit)};
    part.data += piece.size;
    part.size -= piece.size;
    return piece;
  }
};

}  // namespace

std::size_t Ring::room() const {
  const std::uint64_t used = control_->written.load(std::memory_order_relaxed) -
                             control_->read.load(std::memory_order_seq_cst);
  if (used > capacity_)
    throw TransferError(Failure::mismatch, -1, "the peer damaged the shared ring");
  return capacity_ - used;
}

std::size_t Ring::available() const {
  const std::uint64_t used = control_->written.load(std::memory_order_seq_cst) -
                             control_->read.load(std::memory_order_relaxed);
  if (used > capacity_)
    throw TransferError(Failure::mismatch, -1, "the peer damaged the shared ring");
  return used;
}

bool Ring::empty() const {
  return available() == 0;
}

void Ring::publish(std::uint64_t written, Doorbell& reader) {
  control_->written.store(written, std::memory_order_seq_cst);
  if (control_->data_wanted.load(std::memory_order_seq_cst) != 0 &&
      control_->data_wanted.exchange(0) != 0)
    reader.ring();
}

std::size_t Ring::write(Part first, Part second, Doorbell& reader) {
  Cursor cursor{first, second};
  std::size_t total = 0;
  std::size_t unpublished = 0;
  std::uint64_t written = control_->written.load(std::memory_order_relaxed);
  std::size_t free = room();
  while (cursor.left() > 0) {
    if (free == 0) {
      if (unpublished > 0) publish(written, reader);
      unpublished = 0;
      control_->space_wanted.store(std::min(cursor.left(), capacity_ / 2));
      free = room();
      if (free == 0) return total;
      control_->space_wanted.store(0);
    }
    const std::size_t at = written & (capacity_ - 1);
    const Part piece = cursor.take(std::min({free, capacity_ - at, kStride}));
    std::memcpy(data_ + at, piece.data, piece.size);
    written += piece.size;
    unpublished += piece.size;
    total += piece.size;
    free -= piece.size;
    if (unpublished >= kStride || cursor.left() == 0) {
      publish(written, reader);
      unpublished = 0;
      free = room();
    }
  }
  return total;
}

std::size_t Ring::read(Part first, Part second, Doorbell& writer) {
  Cursor cursor{first, second};
  std::size_t total = 0;
  std::uint64_t read = control_->read.load(std::memory_order_relaxed);
  std::size_t ready = available();
  while (cursor.left() > 0) {
    if (ready == 0) {
      control_->data_wanted.store(1);
      ready = available();
      if (ready == 0) return total;
      control_->data_wanted.store(0);
    }
    const std::size_t at = read & (capacity_ - 1);
    const Part piece = cursor.take(std::min({ready, capacity_ - at, kStride}));
    std::memcpy(piece.data, data_ + at, piece.size);
    read += piece.size;
    total += piece.size;
    control_->read.store(read, std::memory_order_seq_cst);
    const std::uint64_t wanted = control_->space_wanted.load(std::memory_order_seq_cst);
    ready = available();
    if (wanted != 0 && capacity_ - ready >= wanted && control_->space_wanted.exchange(0) != 0)
      writer.ring();
  }
  return total;
}

RingStream::RingStream(Mapping mapping, std::size_t capacity, bool first_end, Doorbell peer)
    : mapping_(std::move(mapping)),
      peer_(std::move(peer)),
      out_(mapping_.data() + (first_end ? 0 : Ring::bytes_for(capacity)), capacity),
      in_(mapping_.data() + (first_end ? Ring::bytes_for(capacity) : 0), capacity) {}

std::size_t RingStream::write(Part first, Part second) {
  return peer_closed_ ? kEnded : out_.write(first, second, peer_);
}

std::size_t RingStream::read(Part first, Part second) {
  if (peer_closed_ && in_.empty()) return kEnded;
  return in_.read(first, second, peer_);
}

}  // namespace troupe::tensor::shm
