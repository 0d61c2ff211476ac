#include "models/unpack_weights.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

namespace troupe::models {
namespace {

using Byte = std::uint8_t;

/// Elements that a thread unpacks at a time, at least.
constexpr std::int64_t kGrain = 1 << 16;

float half_at(const Byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return c10::Half(bits, c10::Half::from_bits());
}

/// Every function here unpacks one block. A product and a sum are each rounded (the file is
/// compiled without contraction), as NumPy does in gguf-py.
void q4_0(const Byte* block, float* values) {
  const float d = half_at(block);
  const Byte* nibbles = block + 2;
  for (int i = 0; i < 16; ++i) {
    values[i] = d * static_cast<float>((nibbles[i] & 15) - 8);
    values[i + 16] = d * static_cast<float>((nibbles[i] >> 4) - 8);
  }
}

void q4_1(const Byte* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  const Byte* nibbles = block + 4;
  for (int i = 0; i < 16; ++i) {
    values[i] = d * static_cast<float>(nibbles[i] & 15) + m;
    values[i + 16] = d * static_cast<float>(nibbles[i] >> 4) + m;
  }
}

/// Returns the five bits of element `i` of 32: nibbles and, bit by bit, their highest bits.
int five_bits(const Byte* highest, const Byte* nibbles, int i) {
  const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
  return low | (highest[i / 8] >> (i % 8) & 1) << 4;
}

void q5_0(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(five_bits(block + 2, block + 6, i) - 16);
}

void q5_1(const Byte* block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(five_bits(block + 4, block + 8, i)) + m;
}

void q8_0(const Byte* block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i)
    values[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

void q2_k(const Byte* block, float* values) {
  const Byte* scales = block;
  const Byte* bits = block + 16;
  const float d = half_at(block + 80), least = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, shift = i % 128 / 32 * 2;
    const int q = bits[half * 32 + i % 32] >> shift & 3;
    const Byte scale = scales[i / 16];
    values[i] = d * static_cast<float>(scale & 15) * static_cast<float>(q) -
                least * static_cast<float>(scale >> 4);
  }
}

void q3_k(const Byte* block, float* values) {
  const Byte* highest = block;
  const Byte* bits = block + 32;
  const Byte* packed = block + 96;
  const float d = half_at(block + 108);
  float scales[16];
  for (int j = 0; j < 16; ++j) {
    const int low = j < 8 ? packed[j] & 15 : packed[j - 8] >> 4;
    const int high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
    scales[j] = d * static_cast<float>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, group = i % 128 / 32;
    const int low = bits[half * 32 + i % 32] >> (group * 2) & 3;
    const int missing = 1 - (highest[i % 32] >> (half * 4 + group) & 1);
    values[i] = scales[i / 16] * static_cast<float>(low - 4 * missing);
  }
}

/// Scale and minimum of the eight groups of 32 elements of `q4_k` and `q5_k`, six bits each.
struct ScaleAndLeast {
  float scale[8];
  float least[8];

  explicit ScaleAndLeast(const Byte* block) {
    const float d = half_at(block), m = half_at(block + 2);
    const Byte* packed = block + 4;
    for (int j = 0; j < 8; ++j) {
      const int s = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
      const int l = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
      scale[j] = d * static_cast<float>(s);
      least[j] = m * static_cast<float>(l);
    }
  }
};

void q4_k(const Byte* block, float* values) {
  const ScaleAndLeast of(block);
  const Byte* nibbles = block + 16;
  for (int i = 0; i < 256; ++i) {
    const Byte both = nibbles[i / 64 * 32 + i % 32];
    const int q = i % 64 < 32 ? both & 15 : both >> 4;
    values[i] = of.scale[i / 32] * static_cast<float>(q) - of.least[i / 32];
  }
}

void q5_k(const Byte* block, float* values) {
  const ScaleAndLeast of(block);
  const Byte* highest = block + 16;
  const Byte* nibbles = block + 48;
  for (int i = 0; i < 256; ++i) {
    const Byte both = nibbles[i / 64 * 32 + i % 32];
    const int low = i % 64 < 32 ? both & 15 : both >> 4;
    const int q = low | (highest[i % 32] >> (i / 32) & 1) << 4;
    values[i] = of.scale[i / 32] * static_cast<float>(q) - of.least[i / 32];
  }
}

void q6_k(const Byte* block, float* values) {
  const Byte* scales = block + 192;
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128, group = i % 128 / 32;
    const Byte both = block[half * 64 + group % 2 * 32 + i % 32];
    const int low = group < 2 ? both & 15 : both >> 4;
    const int high = block[128 + half * 32 + i % 32] >> (group * 2) & 3;
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[i / 16]));
    values[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

void e4m3(const Byte* block, float* values) {
  *values = c10::Float8_e4m3fn(*block, c10::Float8_e4m3fn::from_bits());
}

void e5m2(const Byte* block, float* values) {
  *values = c10::Float8_e5m2(*block, c10::Float8_e5m2::from_bits());
}

using UnpackBlock = void (*)(const Byte* block, float* values);

UnpackBlock block_of(spec::Dtype dtype) {
  using spec::Dtype;
  switch (dtype) {
    case Dtype::q4_0:
      return q4_0;
    case Dtype::q4_1:
      return q4_1;
    case Dtype::q5_0:
      return q5_0;
    case Dtype::q5_1:
      return q5_1;
    case Dtype::q8_0:
      return q8_0;
    case Dtype::q2_k:
      return q2_k;
    case Dtype::q3_k:
      return q3_k;
    case Dtype::q4_k:
      return q4_k;
    case Dtype::q5_k:
      return q5_k;
    case Dtype::q6_k:
      return q6_k;
    case Dtype::float8_e4m3:
      return e4m3;
    case Dtype::float8_e5m2:
      return e5m2;
    default:
      throw std::invalid_argument("[unpack_weights] " + std::string(spec::dtype_name(dtype)) +
                                  " is not packed");
  }
}

/// Operations on all blocks at once: `blocks` is uint8 [number of blocks, bytes of a block].
class BlocksByLibrary {
 public:
  explicit BlocksByLibrary(const at::Tensor& blocks) : blocks_(blocks) {}

  at::Tensor values(spec::Dtype dtype) const {
    using spec::Dtype;
    switch (dtype) {
      case Dtype::q4_0:
        return half(0) * (halves_of(2) - 8);
      case Dtype::q4_1:
        return half(0) * halves_of(4) + half(2);
      case Dtype::q5_0:
        return half(0) * (halves_of(6) + 16 * bits_of(2) - 16);
      case Dtype::q5_1:
        return half(0) * (halves_of(8) + 16 * bits_of(4)) + half(2);
      case Dtype::q8_0:
        return half(0) * bytes(2, 32).view(at::kChar).to(at::kFloat);
      case Dtype::q2_k: {
        const at::Tensor scales = bytes(0, 16);
        return by_16(half(80) * low_of(scales)) * pairs_of(16) - by_16(half(82) * high_of(scales));
      }
      case Dtype::q3_k:
        return by_16(half(108) * (scales_of_q3_k() - 32)) * (pairs_of(32) + 4 * highest_of(0) - 4);
      case Dtype::q4_k:
        return by_32(half(0) * scales_of_k()) * nibbles_of_k(16) - by_32(half(2) * least_of_k());
      case Dtype::q5_k:
        return by_32(half(0) * scales_of_k()) * (nibbles_of_k(48) + 16 * highest_of(16)) -
               by_32(half(2) * least_of_k());
      case Dtype::q6_k: {
        const at::Tensor scales = bytes(192, 16).view(at::kChar).to(at::kFloat);
        const at::Tensor both = bytes(0, 128).view({-1, 2, 64});
        const at::Tensor low = at::stack({low_of(both), high_of(both)}, 2).view({-1, 256});
        const at::Tensor high = shifted(bytes(128, 64).view({-1, 2, 1, 32}), 2, 4, 3);
        return by_16(half(208) * scales) * (low + 16 * high - 32);
      }
      case Dtype::float8_e4m3:
        return blocks_.view(at::kFloat8_e4m3fn).to(at::kFloat);
      case Dtype::float8_e5m2:
        return blocks_.view(at::kFloat8_e5m2).to(at::kFloat);
      default:
        throw std::invalid_argument("[unpack_weights] " + std::string(spec::dtype_name(dtype)) +
                                    " is not packed");
    }
  }

 private:
  at::Tensor bytes(std::int64_t at, std::int64_t count) const {
    return blocks_.slice(1, at, at + count).contiguous();
  }
  at::Tensor half(std::int64_t at) const { return bytes(at, 2).view(at::kHalf).to(at::kFloat); }
  static at::Tensor low_of(const at::Tensor& bytes) { return bytes.bitwise_and(15).to(at::kFloat); }
  static at::Tensor high_of(const at::Tensor& bytes) {
    return bytes.bitwise_right_shift(4).to(at::kFloat);
  }
  /// Returns the low halves of 16 bytes, then their high ones.
  at::Tensor halves_of(std::int64_t at) const {
    const at::Tensor both = bytes(at, 16);
    return at::cat({low_of(both), high_of(both)}, 1);
  }
  /// Shifts `of` [blocks, a, 1, n] by 0, `step`, 2 · step, … to the right, `count` times: [blocks,
  /// a · count · n].
  static at::Tensor shifted(const at::Tensor& of, int step, int count, int mask) {
    const at::Tensor shifts = (at::arange(count, of.options()) * step).view({1, 1, -1, 1});
    return of.bitwise_right_shift(shifts).bitwise_and(mask).to(at::kFloat).view({of.size(0), -1});
  }
  /// Returns the 32 bits of four bytes.
  at::Tensor bits_of(std::int64_t at) const {
    const at::Tensor own = bytes(at, 4).view({-1, 4, 1, 1});
    const at::Tensor shifts = at::arange(8, own.options());
    return own.bitwise_right_shift(shifts).bitwise_and(1).to(at::kFloat).view({own.size(0), -1});
  }
  at::Tensor pairs_of(std::int64_t at) const {
    return shifted(bytes(at, 64).view({-1, 2, 1, 32}), 2, 4, 3);
  }
  at::Tensor highest_of(std::int64_t at) const {
    return shifted(bytes(at, 32).view({-1, 1, 1, 32}), 1, 8, 1);
  }
  at::Tensor nibbles_of_k(std::int64_t at) const {
    return shifted(bytes(at, 128).view({-1, 4, 1, 32}), 4, 2, 15);
  }
  static at::Tensor by_16(const at::Tensor& groups) { return groups.repeat_interleave(16, 1); }
  static at::Tensor by_32(const at::Tensor& groups) { return groups.repeat_interleave(32, 1); }
  at::Tensor scales_of_q3_k() const {
    const at::Tensor low = bytes(96, 8);
    const at::Tensor high = shifted(bytes(104, 4).view({-1, 1, 1, 4}), 2, 4, 3);
    return at::cat({low_of(low), high_of(low)}, 1) + 16 * high;
  }
  /// Returns scales, or least values, of the groups of `q4_k` and `q5_k`, of six bits: the first
  /// four in bytes [at, at + 4), of the others the low bits by `low_of` or `high_of`.
  at::Tensor six_bits(std::int64_t at, at::Tensor (*low)(const at::Tensor&)) const {
    const at::Tensor own = bytes(at, 4);
    const at::Tensor highest = own.bitwise_right_shift(6).to(at::kFloat);
    return at::cat({own.bitwise_and(63).to(at::kFloat), low(bytes(12, 4)) + 16 * highest}, 1);
  }
  at::Tensor scales_of_k() const { return six_bits(4, low_of); }
  at::Tensor least_of_k() const { return six_bits(8, high_of); }

  const at::Tensor blocks_;
};

}  // namespace

at::Tensor unpack_by_library(spec::Dtype dtype, const at::Tensor& blocks) {
  const auto size = static_cast<std::int64_t>(spec::dtype_block(dtype).bytes);
  return BlocksByLibrary(blocks.view({-1, size})).values(dtype).view({-1});
}

PackedMatrix PackedMatrix::part(std::int64_t row, std::int64_t row_end, std::int64_t column,
                                std::int64_t column_end) const {
  const auto block = spec::dtype_block(dtype);
  const auto elements = static_cast<std::int64_t>(block.elements);
  const auto size = static_cast<std::int64_t>(block.bytes);
  const std::int64_t begin = (first + column) / elements;
  const std::int64_t end = (first + column_end + elements - 1) / elements;
  const at::Tensor own = bytes.slice(0, row, row_end).slice(1, begin * size, end * size);
  return {dtype, scale, own.clone(at::MemoryFormat::Contiguous), first + column - begin * elements,
          column_end - column};
}

std::function<at::Tensor(const at::Tensor&)> PackedMatrix::unpacker(at::ScalarType type) const {
  return [dtype = dtype, scale = scale, first = first, columns = columns,
          type](const at::Tensor& rows) {
    at::Tensor values;
    if (rows.is_cpu()) {
      const at::Tensor own = rows.contiguous();
      const auto block = spec::dtype_block(dtype);
      const auto size = static_cast<std::size_t>(own.numel());
      const std::size_t count = size / block.bytes * block.elements;
      values = at::empty({static_cast<std::int64_t>(count)}, at::kFloat);
      unpack_weights(dtype, {static_cast<const std::byte*>(own.const_data_ptr()), size},
                     {values.mutable_data_ptr<float>(), count});
    } else {
      values = unpack_by_library(dtype, rows.contiguous());
    }
    if (scale != 1) values.mul_(scale);
    return values.view({rows.size(0), -1}).slice(1, first, first + columns).to(type).contiguous();
  };
}

void unpack_weights(spec::Dtype dtype, std::span<const std::byte> stored, std::span<float> values) {
  const auto unpack = block_of(dtype);
  const spec::DtypeBlock block = spec::dtype_block(dtype);
  const std::size_t blocks = stored.size() / block.bytes;
  if (stored.size() % block.bytes != 0 || values.size() != blocks * block.elements)
    throw std::invalid_argument("[unpack_weights] the stored bytes are not those of the values");
  const auto* from = reinterpret_cast<const Byte*>(stored.data());
  const auto grain = std::max<std::int64_t>(1, kGrain / static_cast<std::int64_t>(block.elements));
  at::parallel_for(
      0, static_cast<std::int64_t>(blocks), grain, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
          unpack(from + i * block.bytes, values.data() + i * block.elements);
      });
}

}  // namespace troupe::models
