#include "tests/gpu/pretend/accesses.h"

#include <algorithm>

namespace pretend {

void Clock::reach(std::size_t stream, std::uint64_t count) {
  if (stream >= counts_.size()) counts_.resize(stream + 1);
  counts_[stream] = std::max(counts_[stream], count);
}

void Clock::join(const Clock& other) {
  for (std::size_t stream = 0; stream < other.counts_.size(); ++stream)
    if (other.counts_[stream] > of(stream)) reach(stream, other.counts_[stream]);
}

/// Cells begin at `at` from here on; the first of them that does not lie before it.
Accesses::Cells::iterator Accesses::cut(std::uintptr_t at) {
  auto next = cells_.lower_bound(at);
  if (next == cells_.begin()) return next;
  auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Cell rest = before->second;
  before->second.end = at;
  return cells_.emplace_hint(next, at, std::move(rest));
}

std::optional<std::string> Accesses::note(const std::vector<Range>& ranges, const std::string& name,
                                          std::size_t stream, std::uint64_t count,
                                          const Clock& after) {
  std::optional<std::string> race;
  const auto meet = [&](const Access& other, const Range& range, const char* did) {
    if (race || (other.stream == stream && other.count <= count) ||
        after.of(other.stream) >= other.count)
      return;
    race = "RACE: \"" + name + "\" on stream " + std::to_string(stream) +
           (range.written ? " writes " : " reads ") + std::to_string(range.bytes) +
           " bytes that \"" + other.name + "\" on stream " + std::to_string(other.stream) + did +
           ", and no event, stream or wait of the host orders the two";
  };
  for (const Range& range : ranges) {
    if (range.bytes == 0 || !range.data) continue;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data), end = begin + range.bytes;
    cut(end);
    auto cell = cut(begin);
    for (std::uintptr_t at = begin; at < end;) {
      if (cell == cells_.end() || cell->first > at) {
        const auto until = cell == cells_.end() ? end : std::min(end, cell->first);
        cell = cells_.emplace_hint(cell, at, Cell{until, {}, {}});
      }
      Cell& of = cell->second;
      if (of.writer) meet(*of.writer, range, " writes");
      if (range.written) {
        for (const Access& reader : of.readers)
          meet(reader, range, " reads");
        of.readers.clear();
        of.writer = Access{stream, count, name};
      } else {
        std::erase_if(of.readers, [&](const Access& old) {
          return old.stream == stream || after.of(old.stream) >= old.count;
        });
        of.readers.push_back({stream, count, name});
      }
      at = of.end;
      ++cell;
    }
  }
  return race;
}

void Accesses::forget(const void* data, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto end = cut(begin + bytes);
  cells_.erase(cut(begin), end);
}

}  // namespace pretend
