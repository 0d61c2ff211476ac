// A library that never lets go of whoever opens it.
#include <unistd.h>

namespace {

struct Hangs {
  Hangs() {
    for (;;)
      pause();
  }
} hangs;

}  // namespace
