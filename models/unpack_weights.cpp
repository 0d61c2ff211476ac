#include "models/unpack_weights.h"

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

}  // namespace

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
