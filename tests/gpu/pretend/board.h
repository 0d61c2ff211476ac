#pragma once

#include <cstdint>

namespace pretend {

/// State that a process shows to the others, in a memfd that they open by /proc: for whom its
/// device waits, and which of its threads waits for the device. Times are of the steady clock.
struct Board {
  static constexpr int kWaits = 32;
  static constexpr int kText = 320;
  struct Wait {
    std::int32_t process;
    std::int32_t board;
    char text[kText];
  };
  std::uint32_t version;  ///< odd while it is being written
  std::int32_t waits;
  Wait wait[kWaits];
  char stuck[kText];  ///< the thread that waits for the device, or empty
};

}  // namespace pretend
