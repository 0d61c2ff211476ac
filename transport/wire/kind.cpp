#include "transport/wire/kind.h"

#include "base/format.h"

namespace troupe::wire {

std::string to_string(Kind kind) {
  switch (kind) {
#define KIND(name, number) \
  case Kind::name:         \
    return #name;
#include "transport/wire/kinds.def"
#undef KIND
  }
  return fmt::format("kind {}", static_cast<unsigned>(kind));
}

}  // namespace troupe::wire
