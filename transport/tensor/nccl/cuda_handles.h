#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace troupe::tensor::nccl {

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("[tensor.nccl] ") + call + ": " +
                             cudaGetErrorString(status));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

  /// cudaSuccess, cudaErrorNotReady, or what went wrong on the device. "Not ready" is not left
  /// behind as the thread's last error, where the next launch would find it.
  cudaError_t query() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream of the highest priority: transfers are short, and others wait for them.
class Stream {
 public:
  Stream() {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest),
          "cudaStreamCreateWithPriority");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

  /// Same as Event::query, for all that is queued on the stream.
  cudaError_t query() const {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace troupe::tensor::nccl
