#pragma once
#include <string>

#include "transport/wire/kind.h"

namespace troupe::wire {

/// The plain yes to a request that asks for nothing but to be carried out.
struct Done {
  static constexpr Kind kKind = Kind::done;
  std::string note;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(note);
  }
};

}  // namespace troupe::wire
