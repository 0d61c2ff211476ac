#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The pretend GPU's inside, for the libraries that stand in the place of NCCL and of LibTorch's
/// CUDA half. What the runtime's API does with it is in runtime_api.cpp.
namespace pretend {

/// Bytes that a command reads or writes.
struct Range {
  const void* data;
  std::size_t bytes;
  bool written;
};

/// Another process that has to do something first.
struct PeerWait {
  int process = 0;
  int board = -1;  ///< file descriptor there of what it says of itself (board.h)
  std::string what;
};

/// One thing that a stream does.
struct Command {
  std::string name;
  /// Called by the device's thread until it returns true; until then it occupies its stream.
  std::function<bool()> run;
  std::vector<Range> ranges;
  /// Thread blocks of the device that the command takes for as long as it runs; 0: none, a copy.
  int thread_blocks = 1;
  /// Returns the processes that the command waits for now; set where it may have to wait for
  /// others.
  std::function<std::vector<PeerWait>()> waits_for;
};

/// Queues a kernel as `cudaLaunchKernel` does. `function` is what must have been loaded: the first
/// launch of it on a device loads it, which waits for the whole device while it holds the context
/// lock, unless CUDA_MODULE_LOADING is EAGER. Empty: nothing to load.
cudaError_t launch(cudaStream_t stream, Command command, const std::string& function);
/// Same as `launch`, without the context lock's cost of loading: what `cudaMemcpyAsync` queues.
cudaError_t enqueue(cudaStream_t stream, Command command, const char* call);

/// Waits for everything on the current device while holding its context lock, as `cudaFree` does.
cudaError_t drain(const std::string& why);
/// Fills a range that is handed out anew with NaN, which no program may read, in the stream's
/// order.
cudaError_t poison(cudaStream_t stream, void* data, std::size_t bytes);

/// A CPU's body for the kernels whose mangled name contains `part`: makes the command of a launch
/// from its arguments. For kernels that nvcc has compiled.
using KernelBody = std::function<Command(const std::string& name, void** arguments)>;
void give_body(std::string part, KernelBody body);

/// Returns whether something has made a context on that device.
bool has_context(int device);

/// Returns the descriptor of this process's board.
int board_descriptor();
/// Tells that something moved on a device that only its command knows of.
void progress();

/// Reports what no program may do: one line to standard error and to TROUPE_PRETEND_REPORT. Ends
/// the process unless TROUPE_PRETEND_FAULTS is "report".
void fault(const std::string& text);

/// Returns a number of the environment, or `otherwise`.
std::int64_t setting(const char* name, std::int64_t otherwise);
/// Returns a random number that is the same for the same seed (TROUPE_PRETEND_SEED) and arguments.
std::uint64_t drawn(std::uint64_t a, std::uint64_t b, std::uint64_t c);

}  // namespace pretend
