#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "kernels/quantized.h"

namespace troupe::kernels {

namespace simd {
struct GemmTask;
}

/// Rows of a weight that stay in memory as they are stored, and are unpacked where a product needs
/// them.
struct StoredRows {
  at::Tensor bytes;  ///< a row of its own for each output
  /// Returns the values [n, in] of n of these rows, contiguous, in the type that is computed with.
  /// Called from several threads.
  std::function<at::Tensor(const at::Tensor& bytes)> values;
};

/// y = x · weightᵀ + bias with the weight laid out once for the CPU at hand, or unpacked part by
/// part in each product. float32 on CPU runs on own code where the CPU has AVX2, AVX-512 or NEON;
/// everything else on ATen. A weight of 8-bit numbers is multiplied by rows that are quantized as
/// they come, each by its largest magnitude, and the sums are scaled in float32.
class Linear {
 public:
  Linear() = default;
  /// weight [out, in]; bias [out] or undefined. Takes no copy beyond the packed one.
  explicit Linear(const at::Tensor& weight, const at::Tensor& bias = {});
  explicit Linear(QuantizedWeight weight, const at::Tensor& bias = {});
  /// The weight's rows are those of the `parts`, one behind the other, of `in` inputs each. In
  /// float32 on this library's own code every product has the bits of the unpacked weight's.
  Linear(std::vector<StoredRows> parts, int64_t in, const at::Tensor& bias);

  /// x [..., in] → [..., out].
  at::Tensor operator()(const at::Tensor& x) const;
  /// gelu_tanh(x · weightᵀ + bias), with the activation in the product's tail.
  at::Tensor gelu(const at::Tensor& x) const;
  /// residual += x · weightᵀ + bias. residual [..., out], contiguous.
  void add_to(at::Tensor& residual, const at::Tensor& x) const;
  /// residual += gate · (x · weightᵀ + bias). residual and x [B, N, ...]; gate [B, out].
  void add_gated_to(at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate) const;

  /// Parts of a product that is cut by its inputs: shards agree on the `largest` magnitude of each
  /// whole row, compute sums [rows, out] in float32 and add them up. Sums of bytes are integers:
  /// together they have the bits of the product that is not cut (below 2^24).
  bool quantized() const { return quantized_.type != WeightType::as_computed; }
  at::Tensor sums(const at::Tensor& x, const at::Tensor& largest) const;
  /// Writes the values [rows, out] of rows that are bytes already, by their `largest` magnitudes,
  /// in float32 on a CPU.
  void of_bytes(const at::Tensor& bytes, const at::Tensor& largest, at::Tensor& out) const {
    write_of_bytes(bytes, largest, out, Tail::kNone, {});
  }
  /// Computes residual += gate · (values of the sums + bias); without a gate, residual += values of
  /// the sums + bias.
  void add_sums_to(at::Tensor& residual, const at::Tensor& sums, const at::Tensor& largest,
                   const std::optional<at::Tensor>& gate) const;

  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  int64_t bytes() const;
  /// Adds pointers to the tensors that the product keeps; some may be undefined. A caller that puts
  /// other tensors in their place keeps their shapes.
  void list_tensors(std::vector<at::Tensor*>& all);
  /// Returns whether `weight` itself is still in use, not a packed copy.
  bool keeps(const at::Tensor& weight) const;

 private:
  enum class Tail { kNone, kGelu, kAdd, kGatedAdd };
  /// Runs own code: on the packed weight, or on stored rows, one panel of which is packed at a
  /// time.
  void run_panels(const at::Tensor& x, at::Tensor& out, Tail tail, const at::Tensor& gate) const;
  void run_stored_panels(const simd::GemmTask& whole, int64_t rows) const;
  at::Tensor stored_values(int64_t begin, int64_t end) const;
  at::Tensor by_library(const at::Tensor& x) const;
  void check_input(const at::Tensor& x) const;
  bool has_panels(const at::Tensor& x) const;
  at::Tensor empty_like_rows(const at::Tensor& x) const;
  void run_quantized(const at::Tensor& x, at::Tensor& out, Tail tail, const at::Tensor& gate) const;
  void write_of_bytes(const at::Tensor& bytes, const at::Tensor& largest, at::Tensor& out,
                      Tail tail, const at::Tensor& gate) const;
  bool scales_in_place(const at::Tensor& out) const;
  /// sums of the rows from `first_row` on; largest and out of all.
  void scale_sums(const at::Tensor& sums, const at::Tensor& largest, at::Tensor& out, Tail tail,
                  const at::Tensor& gate, int64_t first_row = 0) const;

  int64_t in_ = 0;
  int64_t out_ = 0;
  at::Tensor weight_;  // [out, in]; undefined where packed_ is in use
  at::Tensor packed_;  // panels of simd::Table::panel columns
  at::Tensor bias_;
  QuantizedWeight quantized_;
  std::vector<StoredRows> stored_;
};

}  // namespace troupe::kernels
