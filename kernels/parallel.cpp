#include "kernels/parallel.h"

#include <ATen/Parallel.h>

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would run on one thread: compile this file with OpenMP"
#endif

namespace troupe::kernels {

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work) {
  at::parallel_for(begin, end, grain, work);
}

}  // namespace troupe::kernels
