#pragma once

#include <vector>

#include "base/choices.h"
#include "models/spec/transformer_spec.h"

namespace troupe::spec {

/// Returns the threshold of a request that names none: diffusers' own for the first-block cache,
/// TeaCache's mildest published one for TeaCache.
double default_cache_threshold(StepCacheRule rule);
/// Largest threshold that is taken.
inline constexpr double kLargestCacheThreshold = 10;

/// Returns the polynomial that turns the relative change of a model's step signal into that of its
/// output, highest power first. It is published for FLUX.1 and Wan 2.1 1.3B and 14B from text; for
/// all other models it is x itself. Source: TeaCache (Liu et al.), github.com/ali-vilab/TeaCache.
std::vector<double> teacache_polynomial(const TransformerSpec& transformer);

}  // namespace troupe::spec
