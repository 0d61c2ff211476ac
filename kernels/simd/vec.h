// Included once by each isa_*.cpp, which sets TROUPE_LANES. Everything here has internal linkage.
#pragma once

#include <cstdint>

namespace {

constexpr int kLanes = TROUPE_LANES;

typedef float Vec __attribute__((vector_size(4 * TROUPE_LANES)));
typedef std::int32_t IntVec __attribute__((vector_size(4 * TROUPE_LANES)));
typedef float LooseVec __attribute__((vector_size(4 * TROUPE_LANES), aligned(4), may_alias));

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

inline Vec larger(Vec a, Vec b) {
  return a > b ? a : b;
}

/// The lanes of v, each exchanged with the one `step` away.
inline Vec swap_lanes(Vec v, int step) {
  IntVec from{};
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    from[i] = i ^ step;
  return __builtin_shuffle(v, from);
}

inline float sum(Vec v) {
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2)
    v += swap_lanes(v, step);
  return v[0];
}

inline float largest(Vec v) {
#pragma GCC unroll 4
  for (int step = kLanes / 2; step > 0; step /= 2)
    v = larger(v, swap_lanes(v, step));
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
