#pragma once
#include <cstdint>

namespace troupe::control {

/// Sequence numbers of one link, both directions, from 1.
class Link {
 public:
  enum class Arrival { next, duplicate, gap };

  std::uint64_t take_outgoing() { return next_out_++; }
  /// The peer's first message has `sequence`; the next one is awaited.
  void begin_incoming(std::uint64_t sequence) { next_in_ = sequence + 1; }

  /// Judges a message by its number. After a gap the link goes on behind it; `missing` is its
  /// width.
  Arrival arrive(std::uint64_t sequence, std::uint64_t& missing) {
    missing = 0;
    if (sequence < next_in_) return Arrival::duplicate;
    missing = sequence - next_in_;
    next_in_ = sequence + 1;
    return missing ? Arrival::gap : Arrival::next;
  }

 private:
  std::uint64_t next_out_ = 1;
  std::uint64_t next_in_ = 1;
};

}  // namespace troupe::control
