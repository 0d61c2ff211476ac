#pragma once

#include <cstdint>
#include <functional>

namespace troupe::kernels {

/// Returns whether CPUs run this library's own loops. If the environment has
/// TROUPE_CPU_KERNELS=library, they do not: everything goes through LibTorch, which tells a fault
/// of a loop from one of a model, and lets a recorder of LibTorch's calls see everything
/// (tests/support/graph_stand_in.cpp). Weights of 8 bits have no other code than their own.
bool use_cpu_kernels();

/// Splits [begin, end) over torch's own compute threads (`at::set_num_threads`) and calls
/// `work(begin, end)` for each piece; a piece has at least `grain` items. Runs inline with one
/// thread or inside another parallel region. Rethrows an exception of `work`.
void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const std::function<void(std::int64_t, std::int64_t)>& work);

/// Makes the calling thread compute alone from now on, whatever `at::set_num_threads` has said.
void use_one_thread();

}  // namespace troupe::kernels
