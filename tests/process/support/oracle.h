#pragma once
#include <vector>

#include "tests/process/support/reference.h"

namespace troupe::testing {

inline constexpr double kOracleBound = 1e-4;  // of the range of the oracle's latents

/// Runs every case of `reference` at the degrees of `degrees` that it can run at; of those but the
/// first, at every `every`-th, from another one on for each case. Checks that the latents are the
/// oracle's and that neither they nor the pictures change with the degrees, where the first of
/// `degrees` is a single actor. Returns the number of runs.
int check_against_oracle(Reference& reference, const std::vector<Parallelism>& degrees,
                         std::size_t every = 1);

/// Latents of the case's request when it runs with `changes` made to it.
Latents latents_with(Reference& reference, const nlohmann::json& of,
                     void (*changes)(ImageRequest&));

}  // namespace troupe::testing
