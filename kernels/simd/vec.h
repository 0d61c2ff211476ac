// Included once by each isa_*.cpp, which sets TROUPE_LANES. Everything here has internal linkage.
#pragma once

#include <cstdint>

namespace {

constexpr int kLanes = TROUPE_LANES;

typedef float Vec __attribute__((vector_size(4 * TROUPE_LANES)));
typedef std::int32_t IntVec __attribute__((vector_size(4 * TROUPE_LANES)));
typedef float LooseVec __attribute__((vector_size(4 * TROUPE_LANES), aligned(4), may_alias));

/// Permutations whose lanes are constants, which loops over lanes do not become.
template <int kCount, int... kLane>
struct LaneList : LaneList<kCount - 1, kCount - 1, kLane...> {};

template <int... kLane>
struct LaneList<0, kLane...> {
  static IntVec numbers() { return IntVec{kLane...}; }
  /// Exchanges each lane with the one kStep away.
  template <int kStep>
  static Vec swap(Vec v) {
    return __builtin_shufflevector(v, v, (kLane ^ kStep)...);
  }
  /// Returns the lanes of a whose numbers lack the bit kStep, and behind each the same lane of b.
  template <int kStep>
  static Vec lower_halves(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane - kStep : kLane)...);
  }
  /// Returns the same as lower_halves, for the lanes whose numbers have the bit.
  template <int kStep>
  static Vec upper_halves(Vec a, Vec b) {
    return __builtin_shufflevector(a, b, (kLane & kStep ? kLanes + kLane : kLane + kStep)...);
  }
};

using Lanes = LaneList<kLanes>;

inline Vec load(const float* p) {
  return *reinterpret_cast<const LooseVec*>(p);
}

inline void store(float* p, Vec v) {
  *reinterpret_cast<LooseVec*>(p) = v;
}

inline Vec splat(float x) {
  return x - Vec{};
}

inline Vec load_part(const float* p, int count) {
  Vec v{};
  for (int i = 0; i < count; ++i)
    v[i] = p[i];
  return v;
}

inline void store_part(float* p, Vec v, int count) {
  for (int i = 0; i < count; ++i)
    p[i] = v[i];
}

/// Same as load_part, but for when the floats in front of p can be read, too: loads the kLanes
/// floats that end at p + count.
inline Vec load_last(const float* p, int count) {
  const IntVec lanes = Lanes::numbers();
  const Vec moved = __builtin_shuffle(load(p + count - kLanes), lanes + (kLanes - count));
  return lanes < count ? moved : Vec{};
}

inline Vec larger(Vec a, Vec b) {
  return a > b ? a : b;
}

template <int kStep = kLanes / 2>
inline float sum(Vec v) {
  v += Lanes::swap<kStep>(v);
  if constexpr (kStep > 1) return sum<kStep / 2>(v);
  return v[0];
}

template <int kStep = kLanes / 2>
inline float largest(Vec v) {
  v = larger(v, Lanes::swap<kStep>(v));
  if constexpr (kStep > 1) return largest<kStep / 2>(v);
  return v[0];
}

/// 2^x for x <= 127: relative error below 1e-7; exactly 0 below -126; NaN stays NaN.
inline Vec exp2(Vec x) {
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer
  Vec bounded = x < -126.0f ? splat(-126.0f) : x;
  Vec shifted = bounded + kRounder;
  Vec f = bounded - (shifted - kRounder);
  Vec p = splat(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  IntVec power = ((IntVec)shifted + 127) << 23;
  return x < -126.0f ? Vec{} : p * (Vec)power;
}

/// x · sigmoid(2·sqrt(2/pi)·(x + 0.044715·x³)), which is the tanh form of GELU.
inline Vec gelu(Vec x) {
  constexpr float kLinear = -2.0f * 0.7978845608028654f * 1.4426950408889634f;
  Vec exponent = x * (kLinear + kLinear * 0.044715f * (x * x));
  exponent = exponent > 126.0f ? splat(126.0f) : exponent;
  return x / (1.0f + exp2(exponent));
}

}  // namespace
