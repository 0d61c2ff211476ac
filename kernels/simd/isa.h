#pragma once

#include <cstdint>

/// The float32 inner loops, compiled once per instruction set and chosen when the process starts.
/// Plain pointers only: code compiled for a newer CPU must share no inline function with the rest.
namespace troupe::kernels::simd {

enum class Epilogue : std::int32_t {
  kStore,     ///< sets out = y
  kGelu,      ///< sets out = gelu_tanh(y)
  kAdd,       ///< sets out += y
  kGatedAdd,  ///< sets out += gate * y
};

/// One matrix product y = x · W + bias over a range of rows and column panels.
struct GemmTask {
  const float* x;  ///< [rows, depth], row stride `x_stride`
  std::int64_t x_stride;
  const float* packed;  ///< W in panels of Table::panel columns: [panel][depth][Table::panel]
  const float* bias;    ///< [columns] or null
  float* out;           ///< [rows, columns], row stride `out_stride`
  std::int64_t out_stride;
  std::int64_t depth, columns;
  std::int64_t row_begin, row_end;
  std::int64_t panel_begin, panel_end;
  Epilogue epilogue;
  const float* gate;  ///< [batch, columns], row stride `gate_stride`; for kGatedAdd
  std::int64_t gate_stride;
  std::int64_t gate_rows;  ///< rows of one batch item
};

/// Rows of one head's keys or values, used as rows + alpha · (rows − older).
struct RowRun {
  const float* rows;   ///< [count, width], row stride `stride`
  const float* older;  ///< null, or [count, width], row stride `older_stride`
  std::int64_t stride, older_stride, count;
  float alpha;
};

/// The packed keys and values of one head, and queries that attend to them.
struct AttentionTask {
  const float* q;  ///< [queries, width], row stride `q_stride`
  std::int64_t q_stride;
  const float* keys;    ///< result of Table::pack_keys
  const float* values;  ///< result of Table::pack_values
  const float* bias;    ///< [key_count] added to the scores, or null
  float* out;           ///< [queries, width], row stride `out_stride`
  std::int64_t out_stride;
  float* log_sum_exp;  ///< [queries], stride `sum_stride`, or null
  std::int64_t sum_stride;
  std::int64_t queries, key_count, width;
  float scale;
  float* scratch;  ///< Table::attention_scratch(width) floats
};

/// Sums of products of 8-bit integers, made the values that they stand for:
/// y = sums · largest[row] / 127 · scales[column] + bias.
struct ScaleTask {
  const std::int32_t* integers;  ///< [rows of the range, columns], or null
  const float* floats;           ///< the same where integers is null
  const float* largest;          ///< [rows] largest magnitudes of the inputs
  const float* scales;           ///< [columns] of the weight
  const float* bias;             ///< [columns] or null
  float* out;                    ///< [rows, columns]
  std::int64_t columns;
  std::int64_t row_begin, row_end;
  Epilogue epilogue;
  const float* gate;  ///< [batch, columns], row stride `gate_stride`; for kGatedAdd
  std::int64_t gate_stride;
  std::int64_t gate_rows;  ///< rows of one batch item
};

struct Table {
  const char* name;
  int lanes;  ///< floats in a vector
  int panel;  ///< columns of a packed panel
  /// True if products and attention outrun LibTorch's; false with SSE2 alone, where LibTorch has
  /// newer code.
  bool beats_library;

  void (*norm_modulate)(const float* x, std::int64_t rows, std::int64_t width, const float* scale,
                        const float* shift, float eps, float* out);
  /// residual += gate · (x + bias); gate and bias [width] or null.
  void (*add_rows)(float* residual, const float* x, const float* bias, const float* gate,
                   std::int64_t rows, std::int64_t width);
  void (*gelu)(float* x, std::int64_t count);

  /// `weight` is [columns, depth] with contiguous rows.
  void (*pack_weight)(const float* weight, std::int64_t depth, std::int64_t columns, float* packed);
  void (*gemm)(const GemmTask&);

  /// Floats of the packed forms of `count` rows of `width`.
  std::int64_t (*packed_keys_size)(std::int64_t count, std::int64_t width);
  std::int64_t (*packed_values_size)(std::int64_t count, std::int64_t width);
  void (*pack_keys)(const RowRun* runs, int run_count, std::int64_t width, float* packed);
  void (*pack_values)(const RowRun* runs, int run_count, std::int64_t width, float* packed);
  std::int64_t (*attention_scratch)(std::int64_t width);
  int attention_block;  ///< queries worked on together
  void (*attention)(const AttentionTask&);
  /// Rows of two attentions over different keys become one, in `into` and `into_sums`.
  void (*merge_attention)(float* into, float* into_sums, const float* other,
                          const float* other_sums, std::int64_t rows, std::int64_t width);

  /// sums[0] += Σ (x − x1)(x1 − x2), sums[1] += Σ (x1 − x2)² over `rows` rows of `width`, each
  /// summed up in float32 and added in float64.
  void (*difference_sums)(const float* x, std::int64_t x_stride, const float* x1, const float* x2,
                          std::int64_t rows, std::int64_t width, double* sums);

  /// Largest magnitude of each row; NaN for a row with a value that is not finite.
  void (*largest_of_rows)(const float* x, std::int64_t rows, std::int64_t width, float* largest);
  /// x · 127 / largest[row], rounded to nearest; zeros for a row whose largest magnitude is 0 or
  /// not finite.
  void (*quantize_rows)(const float* x, std::int64_t rows, std::int64_t width, const float* largest,
                        std::int8_t* bytes);
  void (*scale_sums)(const ScaleTask&);
};

/// The best table that this CPU can run.
const Table& table();

/// Every table that this CPU can run, best first; `count` receives how many. For tests.
const Table* const* tables(int& count);

}  // namespace troupe::kernels::simd
