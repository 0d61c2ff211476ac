#pragma once

#include <vector>

#include "base/choices.h"
#include "models/spec/transformer_spec.h"

namespace troupe::spec {

/// What a request that names none gets: diffusers' own for the first-block cache, TeaCache's
/// mildest published one for it.
double default_cache_threshold(StepCacheRule rule);
/// The largest that is taken.
inline constexpr double kLargestCacheThreshold = 10;

/// How the relative change of a model's step signal tells that of its output, highest power first.
/// Published for FLUX.1 and Wan 2.1 1.3B and 14B from text; x itself for everything else.
/// Source: TeaCache (Liu et al.), github.com/ali-vilab/TeaCache.
std::vector<double> teacache_polynomial(const TransformerSpec& transformer);

}  // namespace troupe::spec
