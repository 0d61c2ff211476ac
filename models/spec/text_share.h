#pragma once

#include <cstdint>

namespace troupe::spec {

/// Text tokens [begin, end) that one rank of a sequence group computes in one micro-step.
struct TextShare {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const TextShare&) const = default;
};

/// Place of a rank in its sequence group; sequence rank = ring rank × ulysses + ulysses rank.
struct SequencePlace {
  int rank = 0;
  int ring = 1;
  int ulysses = 1;
};

/// Share of the text's tokens of a joint model. They are computed once a step: in a step of the
/// whole picture (micro_step -1) with the picture, else with patch 0, which under distrifusion is
/// ring rank 0's alone. They are split over the ranks that compute them, remainders first.
TextShare text_share(std::int64_t tokens, int micro_step, SequencePlace place, bool distrifusion);

}  // namespace troupe::spec
