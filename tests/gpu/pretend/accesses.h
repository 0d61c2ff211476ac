#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/gpu/pretend/machine.h"

namespace pretend {

/// Number of commands per stream that something comes after, by the stream's number.
class Clock {
 public:
  std::uint64_t of(std::size_t stream) const {
    return stream < counts_.size() ? counts_[stream] : 0;
  }
  void reach(std::size_t stream, std::uint64_t count);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> counts_;
};

/// Last accesses to all bytes. Two commands that touch the same bytes, one of them writing, and of
/// which neither comes after the other by streams, events or the host's waits, are a race, whatever
/// order they happen to run in.
class Accesses {
 public:
  /// Notes what command number `count` of `stream` touches; returns the race that this is, if it is
  /// one.
  std::optional<std::string> note(const std::vector<Range>& ranges, const std::string& name,
                                  std::size_t stream, std::uint64_t count, const Clock& after);
  /// Forgets accesses to memory that has gone back to the device.
  void forget(const void* data, std::size_t bytes);

 private:
  struct Access {
    std::size_t stream;
    std::uint64_t count;
    std::string name;
  };
  struct Cell {
    std::uintptr_t end;
    std::optional<Access> writer;
    std::vector<Access> readers;
  };
  using Cells = std::map<std::uintptr_t, Cell>;
  Cells::iterator cut(std::uintptr_t at);

  Cells cells_;
};

}  // namespace pretend
