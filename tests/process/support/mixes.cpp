#include "tests/process/support/mixes.h"

#include <cstdlib>
#include <random>
#include <string>
#include <utility>

namespace troupe::testing {
std::vector<Parallelism> all_mixes(const MixLimits& limits) {
  std::vector<Parallelism> mixes;
  const int most = limits.most;
  Parallelism mix;
  for (mix.dp = 1; mix.dp <= most; ++mix.dp) {
    for (mix.cfg = 1; mix.cfg <= 2; ++mix.cfg) {
      for (mix.pp = 1; mix.pp <= limits.blocks; ++mix.pp) {
        for (mix.ulysses = 1; mix.ulysses <= most; ++mix.ulysses) {
          for (mix.ring = 1; mix.ring <= most; ++mix.ring) {
            for (mix.tp = 1; mix.tp <= most; ++mix.tp) {
              if (mix.world() > most) break;
              if (mix.world() >= limits.least) mixes.push_back(mix);
            }
          }
        }
      }
    }
  }
  return mixes;
}

std::vector<Parallelism> sample_of(std::vector<Parallelism> mixes, std::size_t count,
                                   std::uint32_t seed) {
  std::mt19937 random(seed);
  for (std::size_t left = mixes.size(); left > 1; --left)
    std::swap(mixes[left - 1], mixes[random() % left]);
  if (mixes.size() > count) mixes.resize(count);
  return mixes;
}

bool full_matrix() {
  const char* asked = std::getenv("TROUPE_FULL_MATRIX");
  return asked != nullptr && std::string(asked) == "1";
}

std::size_t drawn(std::size_t few) {
  const char* asked = std::getenv("TROUPE_MIXES");
  return asked == nullptr ? few : std::strtoull(asked, nullptr, 10);
}

std::vector<Parallelism> axes_and_pairs() {
  return {{},
          {.pp = 2},
          {.ulysses = 2},
          {.ulysses = 3},
          {.ring = 2},
          {.ring = 3},
          {.tp = 2},
          {.tp = 3},
          {.cfg = 2, .ulysses = 2},
          {.cfg = 2, .ring = 3},
          {.cfg = 2, .tp = 2},
          {.pp = 2, .ulysses = 2},
          {.pp = 3, .ulysses = 2},
          {.pp = 2, .ring = 2},
          {.pp = 2, .ring = 3},
          {.pp = 3, .tp = 2},
          {.ulysses = 2, .ring = 2},
          {.ulysses = 3, .ring = 2},
          {.ulysses = 2, .ring = 3},
          {.ulysses = 2, .tp = 2},
          {.ring = 2, .tp = 2},
          {.ring = 3, .tp = 2},
          {.cfg = 2, .pp = 2, .ulysses = 2},
          {.cfg = 2, .pp = 2, .ring = 2},
          {.cfg = 2, .ulysses = 2, .ring = 2},
          {.pp = 2, .ulysses = 2, .ring = 2},
          {.pp = 2, .ring = 2, .tp = 2},
          {.pp = 2, .ulysses = 2, .tp = 2},
          {.ulysses = 2, .ring = 2, .tp = 2},
          {.ulysses = 5},
          {.ulysses = 8},
          {.ring = 4},
          {.ring = 7},
          {.tp = 7}};
}

}  // namespace troupe::testing
