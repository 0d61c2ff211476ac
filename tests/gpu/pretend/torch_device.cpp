// LibTorch's CUDA half over the pretend runtime: what it registers of itself, memory, copies and
// views. What computes is in torch_fallback.cpp.
#include "tests/gpu/pretend/torch_device.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

namespace c10::cuda::_internal {
// Not in a header that is installed.
C10_CUDA_API void setHasPrimaryContext(bool (*ask)(DeviceIndex));
}  // namespace c10::cuda::_internal

namespace pretend {

void check(cudaError_t error, const char* call) {
  TORCH_CHECK(error == cudaSuccess, call, ": CUDA error: ", cudaGetErrorString(error));
}

namespace {

void make_ready() {
  static const bool done = [] {
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
    return true;
  }();
  static_cast<void>(done);
}

// Pinned memory, as LibTorch caches it.

struct PinnedMemory : at::CachingHostAllocatorImpl<c10::cuda::CUDAStream, c10::cuda::CUDAEvent> {
 private:
  using Block = at::HostBlock<c10::cuda::CUDAStream>;
  void allocate_host_memory(size_t size, void** data) override {
    check(cudaHostAlloc(data, size, cudaHostAllocDefault), "cudaHostAlloc");
  }
  void free_block(Block* block) override { check(cudaFreeHost(block->ptr_), "cudaFreeHost"); }
  void record_stream(std::optional<std::vector<c10::cuda::CUDAEvent>>& events,
                     c10::cuda::CUDAStream stream) override {
    c10::cuda::CUDAEvent event(cudaEventDisableTiming);
    event.record(stream);
    events->push_back(std::move(event));
  }
  bool query_event(c10::cuda::CUDAEvent& event) override { return event.query(); }
  c10::cuda::CUDAStream get_current_stream() const override {
    return c10::cuda::getCurrentCUDAStream();
  }
  bool stream_is_capturing(c10::cuda::CUDAStream stream) const override {
    cudaStreamCaptureStatus status{};
    check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }
};

void free_pinned(void* context);
using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedMemory, free_pinned>;
PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;  // blocks may outlive the statics
  return *allocator;
}
void free_pinned(void* context) {
  pinned_allocator().free(context);
}
const bool registered = [] {
  at::setHostAllocator(at::kCUDA, &pinned_allocator());
  c10::cuda::_internal::setHasPrimaryContext(
      [](c10::DeviceIndex device) { return has_context(device); });
  return true;
}();

// Memory of the device.

at::Tensor empty_memory_format(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                               std::optional<at::Layout>, std::optional<at::Device> device,
                               std::optional<bool>, std::optional<at::MemoryFormat> format) {
  make_ready();
  const c10::cuda::OptionalCUDAGuard guard(device);
  const at::Tensor made = at::detail::empty_generic(sizes, c10::cuda::CUDACachingAllocator::get(),
                                                    c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                    at::dtype_or_default(type), format);
  check(poison(c10::cuda::getCurrentCUDAStream(), made.data_ptr(), made.nbytes()), "empty");
  return made;
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  make_ready();
  const c10::cuda::OptionalCUDAGuard guard(device);
  const at::Tensor made = at::detail::empty_strided_generic(
      sizes, strides, c10::cuda::CUDACachingAllocator::get(),
      c10::DispatchKeySet(c10::DispatchKey::CUDA), at::dtype_or_default(type));
  check(poison(c10::cuda::getCurrentCUDAStream(), made.data_ptr(), made.storage().nbytes()),
        "empty_strided");
  return made;
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  c10::cuda::CUDACachingAllocator::recordStream(tensor.storage().data_ptr(),
                                                c10::cuda::CUDAStream(stream));
}

// Copies, in the steps that LibTorch takes: whatever is not one run of bytes is made one first.

/// One run of bytes between host and device.
void copy_bytes(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const at::Device device = to.is_cuda() ? to.device() : from.device();
  const c10::cuda::CUDAGuard guard(device);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  check(cudaMemcpyAsync(to.data_ptr(), from.data_ptr(), to.nbytes(), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
  if (!non_blocking) return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  const at::Tensor& host = to.is_cuda() ? from : to;
  if (host.is_pinned())
    pinned_allocator().record_event(host.data_ptr(), host.storage().data_ptr().get_context(),
                                    stream);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& source, bool non_blocking) {
  if (to.numel() == 0 || to.is_same(source)) return to;
  const at::Tensor from = source.expand_as(to);
  if (to.is_cuda() && from.is_cuda()) {
    TORCH_CHECK(to.device() == from.device(), "the pretend GPUs do not copy to each other");
    const c10::cuda::CUDAGuard guard(to.device());
    launch(std::string("copy ") + c10::toString(from.scalar_type()) + " to " +
               c10::toString(to.scalar_type()),
           {from}, {to}, [to = on_host(to), from = on_host(from)]() mutable { to.copy_(from); });
    return to;
  }
  const at::Tensor dense_from = from.to(to.scalar_type()).contiguous();
  if (to.is_contiguous()) {
    copy_bytes(to, dense_from, non_blocking);
    // Pageable memory that nobody holds any more has been read already; pinned is held by events.
    return to;
  }
  const at::Tensor dense = at::empty(to.sizes(), to.options());
  copy_bytes(dense, dense_from, non_blocking && to.is_cuda());
  to.copy_(dense);
  return to;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::Tensor target = to;
  return copy_(target, from, non_blocking);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  const at::Tensor host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  copy_bytes(host, tensor, false);
  return host.item();
}

bool equal(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.eq(b).all().item<bool>();
}

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override { make_ready(); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return c10::cuda::device_count() > 0; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex device) const override { return has_context(device); }
  at::DeviceIndex deviceCount() const override { return c10::cuda::device_count(); }
  int getNumGPUs() const override { return c10::cuda::device_count(); }
  at::DeviceIndex current_device() const override { return c10::cuda::current_device(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override {
    return c10::cuda::CUDACachingAllocator::get();
  }
  bool isPinnedPtr(const void* data) const override {
    cudaPointerAttributes attributes{};
    return cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
           attributes.type == cudaMemoryTypeHost;
  }
  at::Device getDeviceFromPtr(void* data) const override {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    return {at::kCUDA, static_cast<at::DeviceIndex>(attributes.device)};
  }
};

}  // namespace

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [](void*) {},
      at::TensorOptions(tensor.scalar_type()).device(at::kCPU));
}

void add_ranges(std::vector<Range>& ranges, const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.numel() == 0) return;
  constexpr std::int64_t kRuns = 4096;
  const auto* base = static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  // The dimensions that lie next to each other are one run; the others are walked.
  std::vector<std::pair<std::int64_t, std::int64_t>> outer;  // stride in bytes, size
  for (std::int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d) != 0)
      outer.emplace_back(tensor.stride(d) * width, tensor.size(d));
  std::sort(outer.begin(), outer.end());
  std::int64_t run = width, runs = 1;
  std::size_t merged = 0;
  for (; merged < outer.size() && outer[merged].first == run; ++merged)
    run *= outer[merged].second;
  outer.erase(outer.begin(), outer.begin() + static_cast<std::ptrdiff_t>(merged));
  for (const auto& [stride, size] : outer)
    runs *= size;
  if (runs > kRuns) {  // as if all between were touched
    for (const auto& [stride, size] : outer)
      run += stride * (size - 1);
    ranges.push_back({base, static_cast<std::size_t>(run), written});
    return;
  }
  for (std::int64_t i = 0; i < runs; ++i) {
    std::int64_t offset = 0, rest = i;
    for (const auto& [stride, size] : outer) {
      offset += rest % size * stride;
      rest /= size;
    }
    ranges.push_back({base + offset, static_cast<std::size_t>(run), written});
  }
}

void launch(const std::string& name, const std::vector<at::Tensor>& reads,
            const std::vector<at::Tensor>& writes, std::function<void()> body) {
  Command command;
  command.name = name;
  for (const at::Tensor& tensor : reads)
    add_ranges(command.ranges, tensor, false);
  for (const at::Tensor& tensor : writes)
    add_ranges(command.ranges, tensor, true);
  command.run = [name, body = std::move(body)] {
    const c10::InferenceMode guard;
    try {
      body();
    } catch (const std::exception& error) {
      fault("kernel \"" + name + "\": " + error.what());
    }
    return true;
  };
  check(launch(c10::cuda::getCurrentCUDAStream(), std::move(command), name), "cudaLaunchKernel");
}

at::Tensor empty_there(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType type,
                       at::Device device) {
  return empty_strided(sizes, strides, type, std::nullopt, device, std::nullopt);
}

}  // namespace pretend

namespace at {
using CUDAHooks = pretend::Hooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", pretend::empty_memory_format);
  library.impl("empty_strided", pretend::empty_strided);
  library.impl("record_stream", pretend::record_stream);
  library.impl("copy_", pretend::copy_);
  library.impl("_copy_from", pretend::copy_from);
  library.impl("_local_scalar_dense", pretend::local_scalar_dense);
  library.impl("equal", pretend::equal);
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  library.impl("resize_", TORCH_FN(at::native::resize_));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
}
