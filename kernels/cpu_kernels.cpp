#include "kernels/cpu_kernels.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <cstdlib>
#include <string_view>

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would run on one thread: compile this file with OpenMP"
#endif

namespace troupe::kernels {

bool use_cpu_kernels() {
  static const bool own = [] {
    const char* chosen = std::getenv("TROUPE_CPU_KERNELS");
    return !chosen || std::string_view(chosen) != "library";
  }();
  return own;
}

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work) {
  at::parallel_for(begin, end, grain, work);
}

void use_one_thread() {
  at::internal::lazy_init_num_threads();  // else it would set the number later
  omp_set_num_threads(1);
}

}  // namespace troupe::kernels
