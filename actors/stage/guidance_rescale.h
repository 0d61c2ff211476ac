#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace troupe::actors {

/// Brings guided predictions towards the deviation that the text's own prediction has over the
/// whole picture (arXiv 2305.08891, §3.4), where each actor has some rows and a step may compute
/// one patch alone. What is not computed in a call counts with its values of before, by the rule
/// that the method has for keys and values; so the result does not depend on degrees.
class GuidanceRescale {
 public:
  struct Shape {
    std::int64_t patches = 1;
    std::int64_t images = 1;
    /// Others' patches always count as they were a step before (DistriFusion), not as they were
    /// computed last (PipeFusion).
    bool step_before = false;
  };
  /// Latent rows of a patch, as a call has them one below the other.
  struct Cut {
    std::int64_t patch = 0;
    std::int64_t rows = 0;
  };
  /// Adds up a float64 tensor over all who have rows of this call, each row once; in place.
  using Sum = std::function<void(at::Tensor& moments)>;

  GuidanceRescale(double phi, Shape shape, Sum sum);

  /// `guided` and `text` [images, C, rows, w] float32, rows as `cuts` say, perhaps none. `whole`:
  /// the step takes all patches at once. Every member of the sum calls it.
  at::Tensor apply(int step, bool whole, const at::Tensor& guided, const at::Tensor& text,
                   const std::vector<Cut>& cuts);

 private:
  double phi_;
  Shape shape_;
  Sum sum_;
  int step_ = -1;
  at::Tensor newest_;  // [patches, images, moments] float64
  at::Tensor before_;  // as it was when the step began
};

}  // namespace troupe::actors
