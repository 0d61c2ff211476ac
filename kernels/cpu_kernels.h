#pragma once

namespace troupe::kernels {

/// Returns whether CPUs run this library's own loops. If the environment has
/// TROUPE_CPU_KERNELS=library, they do not: everything goes through LibTorch, which tells a fault
/// of a loop from one of a model, and lets a recorder of LibTorch's calls see everything
/// (tests/support/graph_stand_in.cpp). Weights of 8 bits have no other code than their own.
bool use_cpu_kernels();

}  // namespace troupe::kernels
