#pragma once
#include <cstdint>
#include <vector>

#include "controller/plan/plan.h"

namespace troupe::plan {

/// Returns the actor of a replica, counted from 0, that runs each of the text encoders that cost so
/// much: the dearest first, each at the actor that has least to do so far, the first of them. An
/// encoder that costs nothing, such as one that is absent, is at 0.
std::vector<int> encoder_places(const std::vector<double>& costs, int actors);

/// Returns the cost of the text encoders at the busiest of these actors.
double busiest_encoder(const std::vector<double>& costs, int actors);

/// Returns the bytes that a rank sends for its replica's text: its encoders' output to the rank
/// that projects it, and from there projected states, pooled vectors and lengths to all others.
std::uint64_t caption_bytes(const Plan& plan, const spec::ModelSpec& model, int rank);

}  // namespace troupe::plan
