#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <optional>

#include "kernels/graph_recorder.h"

namespace troupe::kernels {
namespace {

/// The legacy stream cannot be recorded. One other stream a device does for all recordings: cuBLAS
/// keeps a workspace for every stream that it has seen.
c10::cuda::CUDAStream recording_stream(int device) {
  static thread_local std::map<int, c10::cuda::CUDAStream> streams;
  const auto found = streams.find(device);
  if (found != streams.end()) return found->second;
  const auto made = c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device));
  return streams.emplace(device, made).first->second;
}

class CudaGraphRecorder : public GraphRecorder {
 public:
  CudaGraphRecorder(int device, GraphPool pool) : device_(device), pool_{pool.first, pool.second} {}
  ~CudaGraphRecorder() override {
    if (scope_) cancel();
  }

  void begin() override {
    scope_.emplace(recording_stream(device_));
    // Other threads may poll events and allocate meanwhile: only this one is watched.
    run_or_clean_up([&] { graph_.capture_begin(pool_, cudaStreamCaptureModeThreadLocal); },
                    [&] { leave(); });
  }

  void end() override {
    run_or_clean_up([&] { graph_.capture_end(); }, [&] { leave(); });
    scope_.reset();
  }

  void cancel() override {
    try {
      end();
    } catch (const std::exception&) {
      // A partial recording is of no use.
    }
    graph_.reset();
  }

  void replay() override { graph_.replay(); }

 private:
  /// LibTorch's graph tells the allocator to serve the recording from its pool, by a filter that
  /// lives as long as the graph, and takes that back only where the recording ends well. Here it is
  /// taken back where not.
  void leave() {
    scope_.reset();
    (void)cudaGetLastError();
    const auto device = static_cast<c10::DeviceIndex>(device_);
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(device, pool_);
  }

  int device_;
  at::cuda::MempoolId_t pool_;
  at::cuda::CUDAGraph graph_;
  std::optional<c10::cuda::CUDAStreamGuard> scope_;
};

}  // namespace
}  // namespace troupe::kernels

int troupe_graph_version() {
  return troupe::kernels::kGraphLibraryVersion;
}

int troupe_graph_device_type() {
  return static_cast<int>(c10::DeviceType::CUDA);
}

void troupe_graph_pool(troupe::kernels::GraphPool* pool) {
  const auto made = at::cuda::graph_pool_handle();
  *pool = {made.first, made.second};
}

troupe::kernels::GraphRecorder* troupe_graph_make(int device, troupe::kernels::GraphPool pool) {
  return new troupe::kernels::CudaGraphRecorder(device, pool);
}
