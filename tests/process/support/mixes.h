#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "troupe/client.h"

namespace troupe::testing {

/// Limits of a generated matrix of degrees: products from `least` to `most`, at most one stage per
/// block.
struct MixLimits {
  int least = 1;
  int most = 8;
  int blocks = 8;
};

/// Returns every (dp, cfg, pp, ulysses, ring, tp) within the limits, cfg 1 or 2; one actor first.
std::vector<Parallelism> all_mixes(const MixLimits& limits);

/// Returns `count` of the mixes, drawn with `seed`.
std::vector<Parallelism> sample_of(std::vector<Parallelism> mixes, std::size_t count,
                                   std::uint32_t seed);

/// True for TROUPE_FULL_MATRIX=1: nothing is sampled.
bool full_matrix();
/// Returns how many mixes are drawn: TROUPE_MIXES=N, else `few`.
std::size_t drawn(std::size_t few);

/// "pp 2", "ulysses 3", …: a pipeline, both kinds of sequence parallelism and tensor parallelism,
/// alone, in pairs and in threes, within eight actors; more ranks than rows in a patch are among
/// them. One actor first.
std::vector<Parallelism> axes_and_pairs();

}  // namespace troupe::testing
