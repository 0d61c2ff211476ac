#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/graph_recorder.h"

namespace troupe::kernels {

/// Compute that comes again and again, as CUDA graphs: one launch in place of hundreds.
///
/// What changes from call to call without changing the work itself (hidden state, row offsets,
/// timesteps) is passed as tensors and read from device memory. The key names everything else that
/// decides what is launched: patch, mode, block range; shapes and types of the inputs are added to
/// it. Whatever else the body touches (weights, K,V buffers) must stay where it is, and what it
/// does on the host happens only when it is really called: on the first call of a key, which runs
/// it plainly, and on the second, which records it. Transfers and waits have no place in it. Where
/// a body fails while it is recorded it is called once more, plainly: it must begin anew then.
///
/// One cache serves one thread and one stream. Drop it, or `clear` it, when buffers move: at the
/// end of a job, and at a new epoch.
class GraphCache {
 public:
  using Tensors = std::vector<at::Tensor>;
  struct Made {
    Tensors tensors;
    std::any host = {};  ///< result that a call leaves at the host; a replay returns it again
  };
  using Body = std::function<Made(const Tensors&)>;

  /// Keeps at most `most` recordings; the one that has not been used for longest goes.
  explicit GraphCache(std::size_t most = 128) : most_(most) {}

  /// body(inputs): plain where why_plain() tells a reason for their device, else recorded at the
  /// second call and replayed from then on. The tensors are the caller's. Throws what the body
  /// throws; where something in it cannot be recorded, the key stays plain and failure() says why.
  Made run(const std::string& key, const Tensors& inputs, const Body& body);

  void clear();
  std::size_t recordings() const;

  struct Counts {
    std::uint64_t recorded = 0;
    std::uint64_t replayed = 0;  // the call that records replays, too
  };
  /// Returns the counts since the cache was made; clearing does not reset them.
  const Counts& counts() const { return counts_; }
  /// Returns the reason why the newest key that could not be recorded could not; empty if all
  /// could.
  const std::string& failure() const { return failure_; }

  /// Returns the reason why graphs cannot be recorded on such a device; empty if they can.
  static std::string why_plain(at::Device device);

 private:
  struct Entry {
    std::unique_ptr<GraphRecorder> recorder;
    Tensors inputs;
    Made made;
    std::uint64_t used = 0;
    bool plain = false;
  };
  bool record(Entry& entry, const Tensors& inputs, const Body& body);
  void make_room();

  std::size_t most_;
  std::uint64_t calls_ = 0;
  Counts counts_;
  std::string failure_;
  GraphPool pool_;
  std::map<std::string, Entry> entries_;
};

}  // namespace troupe::kernels
