#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "models/spec/weight_index.h"

namespace troupe::models {

/// Writes the values of stored blocks, in float32, bit for bit as gguf-py does: `values` has
/// dtype_block(dtype).elements for each block of `stored`. Takes GGUF's types of blocks and 8-bit
/// floats; throws std::invalid_argument for others. Computes on several threads.
void unpack_weights(spec::Dtype dtype, std::span<const std::byte> stored, std::span<float> values);

/// Does the same with the operations of LibTorch, on whatever device `blocks` (uint8, contiguous)
/// are: values in float32, in the order in which they are stored.
at::Tensor unpack_by_library(spec::Dtype dtype, const at::Tensor& blocks);

/// A matrix whose rows are kept as its file has them.
struct PackedMatrix {
  spec::Dtype dtype = spec::Dtype::float32;
  float scale = 1;
  at::Tensor bytes = {};     ///< uint8 [rows, bytes of a row]
  std::int64_t first = 0;    ///< first value of a row that is used
  std::int64_t columns = 0;  ///< number of values of a row that are used

  /// Returns a copy of rows [row, row_end) and columns [column, column_end), with whole blocks.
  PackedMatrix part(std::int64_t row, std::int64_t row_end, std::int64_t column,
                    std::int64_t column_end) const;
  /// Returns the function that makes of n rows of `bytes`, or of a copy of them on another device,
  /// their values [n, columns], contiguous.
  std::function<at::Tensor(const at::Tensor& rows)> unpacker(at::ScalarType type) const;
};

}  // namespace troupe::models
