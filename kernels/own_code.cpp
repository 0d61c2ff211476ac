#include "kernels/own_code.h"

#include <cstdlib>
#include <string_view>

namespace troupe::kernels {

bool own_cpu_code() {
  static const bool own = [] {
    const char* chosen = std::getenv("TROUPE_CPU_KERNELS");
    return !chosen || std::string_view(chosen) != "library";
  }();
  return own;
}

}  // namespace troupe::kernels
