#pragma once

#include <cstdint>

/// What libtroupe_cuda_graph.so offers: it links LibTorch's CUDA half, which is loaded only where
/// there is a GPU.
namespace troupe::kernels {

/// One recorded piece of work on the current CUDA device.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  /// From here to `end`, what this thread issues on its current stream is recorded, not run.
  /// Waits for the device first.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// Forgets what was recorded since `begin`.
  virtual void cancel() = 0;
  /// Runs what was recorded, on the current stream.
  virtual void replay() = 0;
};

/// A memory pool that recordings share; they must be replayed on one stream.
struct GraphPool {
  std::uint64_t first = 0, second = 0;
};

inline constexpr int kGraphLibraryVersion = 1;

}  // namespace troupe::kernels

extern "C" {
int troupe_graph_version();
void troupe_graph_pool(troupe::kernels::GraphPool* pool);
troupe::kernels::GraphRecorder* troupe_graph_make(int device, troupe::kernels::GraphPool pool);
}
