#include "kernels/cpu_kernels.h"

#include <cstdlib>
#include <string_view>

namespace troupe::kernels {

bool use_cpu_kernels() {
  static const bool own = [] {
    const char* chosen = std::getenv("TROUPE_CPU_KERNELS");
    return !chosen || std::string_view(chosen) != "library";
  }();
  return own;
}

}  // namespace troupe::kernels
