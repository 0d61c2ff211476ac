// The CUDA runtime's entry points that LibTorch's c10_cuda, the product and the pretend NCCL call.
// What else is called does not link, or is refused: add it here.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/gpu/pretend/device.h"

using namespace pretend;

namespace {

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t said(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// A call that needs the context: waits for the thread that holds its lock.
class Call {
 public:
  explicit Call(const char* name, Device* device = nullptr) : lock_(Machine::get().mutex()) {
    device_ = device ? device : &Machine::get().device(current);
    device_->enter(lock_, name);
  }
  ~Call() { device_->leave(); }
  Device& device() { return *device_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
  Device* device_;
};

Device* device_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
    return nullptr;
  return reinterpret_cast<Stream*>(stream)->device;
}

Stream& stream_of(cudaStream_t stream, Device& device) {
  return device_of(stream) ? *reinterpret_cast<Stream*>(stream) : *device.legacy();
}

Event& event_of(cudaEvent_t event) {
  return *reinterpret_cast<Event*>(event);
}

std::string loading() {
  const char* mode = std::getenv("CUDA_MODULE_LOADING");
  return mode ? mode : "LAZY";
}

/// Queues a command. Reports a race without the mutex: a fault may end the process, and must be
/// able to write.
cudaError_t put(cudaStream_t stream, Command command, const char* call, const std::string& function,
                std::vector<Mark> after = {}) {
  std::optional<std::string> race;
  {
    Call entered(call, device_of(stream));
    Device& device = entered.device();
    if (device.sticky != cudaSuccess) return said(device.sticky);
    Stream& to = stream_of(stream, device);
    if (to.capturing) return said(cudaErrorStreamCaptureUnsupported);
    if (!function.empty() && !device.loaded.contains(function)) {
      if (loading() != "EAGER")
        device.drain(entered.lock(), std::string("in ") + call + " loads \"" + function +
                                         "\", which is launched for the first time "
                                         "(CUDA_MODULE_LOADING is " +
                                         loading() + ")");
      device.loaded.insert(function);
    }
    static const auto sticks_at = setting("TROUPE_PRETEND_STICKS_AT", 0);
    static std::int64_t launches = 0;
    if (!function.empty() && ++launches == sticks_at) device.sticky = cudaErrorIllegalAddress;
    race = device.queue(to, std::move(command), std::move(after));
  }
  if (race) fault(*race);
  return cudaSuccess;
}

cudaError_t wait_for(const Mark& mark, const Clock& clock, const char* call, Device& device) {
  { Call entered(call, &device); }
  Machine& machine = Machine::get();
  std::unique_lock lock(machine.mutex());
  machine.changed().wait(lock, [&] {
    return device.sticky != cudaSuccess || !mark.stream || mark.stream->completed >= mark.count;
  });
  if (device.sticky != cudaSuccess) return said(device.sticky);
  machine.host.join(clock);
  return cudaSuccess;
}

struct Function {
  std::string name;
  KernelBody body;
};

std::mutex functions_mutex;

std::map<const void*, std::string>& functions() {
  static auto* all = new std::map<const void*, std::string>;
  return *all;
}

std::vector<std::pair<std::string, KernelBody>>& bodies() {
  static auto* all = new std::vector<std::pair<std::string, KernelBody>>;
  return *all;
}

bool is_pinned(const void* data) {
  const auto& pinned = Machine::get().pinned;
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  auto next = pinned.upper_bound(at);
  if (next == pinned.begin()) return false;
  --next;
  return at < next->first + next->second;
}

/// The host's memory that is not pinned is read before the call returns, and written before, too.
cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream,
                 const char* call, bool waits) {
  if (bytes == 0) return cudaSuccess;
  bool staged = false, returns_late = waits;
  {
    std::lock_guard lock(Machine::get().mutex());
    const bool from_host = !Machine::get().device_of(from), to_host = !Machine::get().device_of(to);
    staged = from_host && !is_pinned(from);
    returns_late = returns_late || (to_host && !is_pinned(to));
  }
  Command command{.name = std::string(call) + " of " + std::to_string(bytes) + " bytes",
                  .run = {},
                  .ranges = {{to, bytes, true}},
                  .thread_blocks = 0,
                  .waits_for = {}};
  if (staged) {
    const auto* begin = static_cast<const char*>(from);
    command.run = [to, kept = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, kept.data(), kept.size());
      return true;
    };
  } else {
    command.ranges.push_back({from, bytes, false});
    command.run = [to, from, bytes] {
      std::memmove(to, from, bytes);
      return true;
    };
  }
  const cudaError_t queued = put(stream, std::move(command), call, "");
  return queued != cudaSuccess || !returns_late ? queued : cudaStreamSynchronize(stream);
}

}  // namespace

namespace pretend {

cudaError_t launch(cudaStream_t stream, Command command, const std::string& function) {
  return put(stream, std::move(command), "cudaLaunchKernel", function);
}

cudaError_t enqueue(cudaStream_t stream, Command command, const char* call) {
  return put(stream, std::move(command), call, "");
}

cudaError_t drain(const std::string& why) {
  Call call("a call that frees");
  call.device().drain(call.lock(), why);
  return said(call.device().sticky);
}

cudaError_t poison(cudaStream_t stream, void* data, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  return enqueue(stream,
                 {.name = "memory handed out anew",
                  .run =
                      [data, bytes] {
                        std::memset(data, 0xff, bytes);
                        return true;
                      },
                  .ranges = {{data, bytes, true}},
                  .thread_blocks = 0,
                  .waits_for = {}},
                 "an allocation");
}

void give_body(std::string part, KernelBody body) {
  std::lock_guard lock(functions_mutex);
  bodies().emplace_back(std::move(part), std::move(body));
}

}  // namespace pretend

extern "C" {

// Devices.

cudaError_t cudaGetDeviceCount(int* count) {
  *count = Machine::get().device_count();
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Machine::get().device_count()) return said(cudaErrorInvalidDevice);
  current = device;
  Call call("cudaSetDevice");  // makes the context where there is none
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Pretend GPU");
  properties->totalGlobalMem =
      static_cast<std::size_t>(setting("TROUPE_PRETEND_MEMORY", 4LL << 30));
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 132;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9
           : attribute == cudaDevAttrMultiProcessorCount  ? 132
                                                          : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  std::vector<Mark> marks;
  Clock all;
  Device* device = nullptr;
  {
    Call call("cudaDeviceSynchronize");
    device = &call.device();
    all = device->everything();
    marks = device->marks();
  }
  for (const Mark& mark : marks)
    if (const cudaError_t error = wait_for(mark, {}, "cudaDeviceSynchronize", *device))
      return error;
  std::lock_guard lock(Machine::get().mutex());
  Machine::get().host.join(all);
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Call call("cudaMemGetInfo");
  *total = static_cast<std::size_t>(setting("TROUPE_PRETEND_MEMORY", 4LL << 30));
  *free = *total - std::min(*total, call.device().allocated);
  return cudaSuccess;
}

// Errors.

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaPeekAtLastError() {
  return last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    default:
      return "an error of the pretend GPU";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidDeviceFunction:
      return "no CPU's body was given for this kernel of the pretend GPU";
    default:
      return cudaGetErrorName(error);
  }
}

// Memory.

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  Call call("cudaMalloc");
  Device& device = call.device();
  *data = nullptr;
  if (device.sticky != cudaSuccess) return said(device.sticky);
  static const auto limit = static_cast<std::size_t>(setting("TROUPE_PRETEND_MEMORY", 4LL << 30));
  if (device.allocated + bytes > limit) return said(cudaErrorMemoryAllocation);
  const std::size_t whole = std::max<std::size_t>((bytes + 511) & ~std::size_t{511}, 512);
  *data = std::aligned_alloc(512, whole);
  std::memset(*data, 0xff, whole);
  device.allocations[reinterpret_cast<std::uintptr_t>(*data)] = whole;
  device.allocated += whole;
  return cudaSuccess;
}

cudaError_t cudaFree(void* data) {
  Call call("cudaFree");
  Device& device = call.device();
  if (!data) return cudaSuccess;
  device.drain(call.lock(), "in cudaFree waits");
  const auto found = device.allocations.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == device.allocations.end()) return said(cudaErrorInvalidValue);
  Machine::get().accesses.forget(data, found->second);
  device.allocated -= found->second;
  device.allocations.erase(found);
  std::free(data);
  return said(device.sticky);
}

cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned) {
  Call call("cudaHostAlloc");
  call.device().drain(call.lock(), "in cudaHostAlloc waits");
  const std::size_t whole = std::max<std::size_t>((bytes + 511) & ~std::size_t{511}, 512);
  *data = std::aligned_alloc(512, whole);
  std::memset(*data, 0xff, whole);
  Machine::get().pinned[reinterpret_cast<std::uintptr_t>(*data)] = whole;
  return said(call.device().sticky);
}

cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return cudaHostAlloc(data, bytes, 0);
}

cudaError_t cudaFreeHost(void* data) {
  Call call("cudaFreeHost");
  call.device().drain(call.lock(), "in cudaFreeHost waits");
  auto& pinned = Machine::get().pinned;
  const auto found = pinned.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == pinned.end()) return said(cudaErrorInvalidValue);
  Machine::get().accesses.forget(data, found->second);
  pinned.erase(found);
  std::free(data);
  return said(call.device().sticky);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  std::lock_guard lock(Machine::get().mutex());
  *attributes = {};
  attributes->device = -1;
  if (Device* device = Machine::get().device_of(data)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device->index();
    attributes->devicePointer = const_cast<void*>(data);
  } else if (is_pinned(data)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = 0;
    attributes->hostPointer = attributes->devicePointer = const_cast<void*>(data);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, stream, "cudaMemcpyAsync", false);
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr, "cudaMemcpy", true);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  return copy(to, from, bytes, stream, "cudaMemcpyPeerAsync", false);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  return put(stream,
             {.name = "cudaMemsetAsync",
              .run =
                  [to, value, bytes] {
                    std::memset(to, value, bytes);
                    return true;
                  },
              .ranges = {{to, bytes, true}},
              .thread_blocks = 0,
              .waits_for = {}},
             "cudaMemsetAsync", "");
}

// Streams.

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  Call call("cudaStreamCreateWithPriority");
  *stream = reinterpret_cast<cudaStream_t>(
      call.device().make_stream((flags & cudaStreamNonBlocking) == 0));
  return said(call.device().sticky);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call("cudaStreamDestroy", device_of(stream));
  return said(call.device().sticky);  // what it holds still runs
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Call call("cudaStreamQuery", device_of(stream));
  const Stream& of = stream_of(stream, call.device());
  if (call.device().sticky != cudaSuccess) return said(call.device().sticky);
  if (of.capturing) return said(cudaErrorStreamCaptureUnsupported);
  if (!of.steps.empty()) return said(cudaErrorNotReady);
  Machine::get().host.join(of.clock);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Mark mark;
  Clock clock;
  Device* device = nullptr;
  {
    Call call("cudaStreamSynchronize", device_of(stream));
    device = &call.device();
    Stream& of = stream_of(stream, *device);
    if (of.capturing) return said(cudaErrorStreamCaptureUnsupported);
    mark = {&of, of.issued};
    clock = of.clock;
  }
  return wait_for(mark, clock, "cudaStreamSynchronize", *device);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Event of = event_of(event);
  if (!of.mark.stream) return cudaSuccess;
  {
    Call call("cudaStreamWaitEvent", device_of(stream));
    stream_of(stream, call.device()).clock.join(of.clock);
  }
  return put(stream,
             {.name = "a wait for an event",
              .run = [] { return true; },
              .ranges = {},
              .thread_blocks = 0,
              .waits_for = {}},
             "cudaStreamWaitEvent", "", {of.mark});
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  std::lock_guard lock(Machine::get().mutex());
  *status = device_of(stream) && reinterpret_cast<Stream*>(stream)->capturing
                ? cudaStreamCaptureStatusActive
                : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  if (id) *id = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

/// Begins a capture. What a capture would record is not kept: everything on such a stream is
/// refused.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!device_of(stream)) return said(cudaErrorStreamCaptureUnsupported);
  Call call("cudaStreamBeginCapture", device_of(stream));
  reinterpret_cast<Stream*>(stream)->capturing = true;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Call call("cudaStreamEndCapture", device_of(stream));
  *graph = nullptr;
  reinterpret_cast<Stream*>(stream)->capturing = false;
  return said(cudaErrorStreamCaptureInvalidated);
}

// Events.

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  Call call("cudaEventCreateWithFlags");
  auto* made = new Event;
  made->device = &call.device();
  made->timed = (flags & cudaEventDisableTiming) == 0;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return said(call.device().sticky);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call call("cudaEventDestroy", event_of(event).device);
  delete &event_of(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Event& of = event_of(event);
  if (of.timed) {
    auto passed = std::make_shared<SteadyClock::time_point>();
    const auto error = put(stream,
                           {.name = "a timed event",
                            .run =
                                [passed] {
                                  *passed = SteadyClock::now();
                                  return true;
                                },
                            .ranges = {},
                            .thread_blocks = 0,
                            .waits_for = {}},
                           "cudaEventRecord", "");
    if (error != cudaSuccess) return error;
    of.passed = passed;
  }
  Call call("cudaEventRecord", device_of(stream));
  Stream& on = stream_of(stream, call.device());
  if (call.device().sticky != cudaSuccess) return said(call.device().sticky);
  if (on.capturing) return said(cudaErrorStreamCaptureUnsupported);
  of.mark = {&on, on.issued};
  of.clock = on.clock;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  Event& of = event_of(event);
  Call call("cudaEventQuery", of.device);
  if (call.device().sticky != cudaSuccess) return said(call.device().sticky);
  if (of.mark.stream && of.mark.stream->completed < of.mark.count) return said(cudaErrorNotReady);
  Machine::get().host.join(of.clock);
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Event of = event_of(event);
  return wait_for(of.mark, of.clock, "cudaEventSynchronize", *of.device);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  const Event first = event_of(from), second = event_of(to);
  for (const Event& of : {first, second}) {
    if (!of.passed) return said(cudaErrorInvalidValue);
    if (of.mark.stream && of.mark.stream->completed < of.mark.count) return said(cudaErrorNotReady);
  }
  *milliseconds = std::chrono::duration<float, std::milli>(*second.passed - *first.passed).count();
  return cudaSuccess;
}

// Kernels that nvcc has compiled.

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t stream) {
  std::string name;
  KernelBody body;
  {
    std::lock_guard lock(functions_mutex);
    const auto found = functions().find(function);
    if (found != functions().end()) name = found->second;
    for (const auto& [part, given] : bodies())
      if (!name.empty() && name.find(part) != std::string::npos) body = given;
  }
  if (!body) return said(cudaErrorInvalidDeviceFunction);
  return launch(stream, body(name, arguments), name);
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared,
                          stream);
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
static thread_local std::vector<Configuration> configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const Configuration of = configurations.back();
  configurations.pop_back();
  *grid = of.grid;
  *block = of.block;
  *shared = of.shared;
  *static_cast<cudaStream_t*>(stream) = of.stream;
  return cudaSuccess;
}

void** __cudaRegisterFatBinary(void* binary) {
  return new void*(binary);
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void** handle) {
  delete handle;
}

char __cudaInitModule(void**) {
  return 1;
}

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  std::lock_guard lock(functions_mutex);
  functions()[host] = name;
}

// What c10_cuda links and does not need here: the driver's functions for growing segments, pools
// and memory of other processes.

static CUresult refuse() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = reinterpret_cast<void*>(&refuse);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

#define REFUSED(name, ...)              \
  cudaError_t name(__VA_ARGS__) {       \
    return said(cudaErrorNotSupported); \
  }
REFUSED(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
REFUSED(cudaFreeAsync, void*, cudaStream_t)
REFUSED(cudaMallocAsync, void**, std::size_t, cudaStream_t)
REFUSED(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
REFUSED(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
REFUSED(cudaMemPoolSetAccess, cudaMemPool_t, const cudaMemAccessDesc*, std::size_t)
REFUSED(cudaMemPoolTrimTo, cudaMemPool_t, std::size_t)
REFUSED(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
REFUSED(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)
REFUSED(cudaIpcCloseMemHandle, void*)
REFUSED(cudaGraphNodeGetDependencies, cudaGraphNode_t, cudaGraphNode_t*, cudaGraphEdgeData*,
        std::size_t*)

}  // extern "C"
