#pragma once

#include <cstdint>
#include <exception>

/// Recorders that a library offers: libtroupe_cuda_graph.so, which links LibTorch's CUDA half and
/// is loaded only if there is a GPU, or a stand-in that tests put in its place.

namespace troupe::kernels {

/// Runs a step that has taken something along the way. Where it throws, `give_back` runs, and the
/// step's exception goes on; what `give_back` throws says nothing more and is dropped.
template <class Step, class GiveBack>
void run_or_clean_up(const Step& step, const GiveBack& give_back) {
  try {
    step();
  } catch (...) {
    try {
      give_back();
    } catch (const std::exception&) {
      // `step` did not take anything yet, or it has been given back already.
    }
    throw;
  }
}

/// One recorded piece of work on the device of the library's kind that it was made for.
class GraphRecorder {
 public:
  virtual ~GraphRecorder() = default;
  /// Begins a recording: until `end`, work that this thread issues on its current stream is
  /// recorded, not run. Waits for nothing, because transfers that need this thread may be under way
  /// on the device.
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

inline constexpr int kGraphLibraryVersion = 2;

}  // namespace troupe::kernels

extern "C" {
int troupe_graph_version();
/// The kind of device whose work it records, a c10::DeviceType.
int troupe_graph_device_type();
void troupe_graph_pool(troupe::kernels::GraphPool* pool);
troupe::kernels::GraphRecorder* troupe_graph_make(int device, troupe::kernels::GraphPool pool);
}
