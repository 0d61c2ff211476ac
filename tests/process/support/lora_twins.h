#pragma once
#include <string>

#include "tests/support/scratch.h"
#include "troupe/client.h"

namespace troupe::testing {

/// A LoRA for every product in the blocks of a checkpoint, and a model folder with the sums written
/// out. They are the same float32 weights to the bit: what is added is exact, so each weight is
/// rounded once, in whatever order it comes about. They go with this object.
class LoraTwins {
 public:
  explicit LoraTwins(const std::string& checkpoint_name);

  Lora lora() const;
  /// The model folder that needs no LoRA.
  std::string merged() const { return scratch_ / "merged"; }

 private:
  Scratch scratch_;
};

}  // namespace troupe::testing
