#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/pretend/machine.h"

namespace pretend {

/// The CPU's view of a tensor of the device: the same memory, for kernels that run there later.
/// Keeps nothing alive, as a kernel's pointers do not.
at::Tensor on_host(const at::Tensor& tensor);

/// Adds the bytes that a tensor's elements lie in.
void add_ranges(std::vector<Range>& ranges, const at::Tensor& tensor, bool written);

/// Queues `body` on the current stream as a kernel called `name`, which is loaded at its first
/// launch. It must touch the named tensors alone, by views that `on_host` made before.
void launch(const std::string& name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, std::function<void()> body);

/// Memory of the device that holds NaN, in the order of the current stream.
at::Tensor empty_there(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                       at::Device device);

void check(cudaError_t error, const char* call);

}  // namespace pretend
