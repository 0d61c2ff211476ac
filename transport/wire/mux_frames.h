#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"

namespace troupe::wire {

/// A frame of a link that another link carries, or a piece of a long one.
struct MuxFrame {
  std::uint32_t slot = 0;  // which link; its carrier gives each a number, and none twice
  bool more = false;       // the next entry is the frame's next piece
  std::string bytes;       // "" = that link's connection is gone

  template <class Archive>
  void serialize(Archive& ar) {
    ar(slot, more, bytes);
  }
};

/// Both ways between controller and node agent: frames of the links of that host's actors, in
/// order.
struct MuxFrames {
  static constexpr Kind kKind = Kind::mux_frames;
  std::vector<MuxFrame> frames;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(frames);
  }
};

}  // namespace troupe::wire
