#pragma once
#include <cstdint>
#include <string>

namespace troupe::wire {

/// Kind of a control-plane message (kinds.def).
enum class Kind : std::uint16_t {
#define KIND(name, number) name = number,
#include "transport/wire/kinds.def"
#undef KIND
};

/// "load_stage"; of a number that is none "kind 200".
std::string to_string(Kind kind);

}  // namespace troupe::wire
