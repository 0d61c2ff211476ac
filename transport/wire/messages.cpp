#include "transport/wire/client_messages.h"
#include "transport/wire/user_messages.h"

namespace troupe::wire {

const char* to_string(Placement placement) {
  switch (placement) {
    case Placement::pack:
      return "pack";
    case Placement::spread:
      return "spread";
    case Placement::together:
      return "together";
  }
  return "unknown";
}

}  // namespace troupe::wire
