#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "tests/process/support/reference.h"
#include "troupe/client.h"

namespace troupe::testing {

inline const std::string kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures/";

/// A case's request with everything around it.
Submission submission_of(Reference& reference, const nlohmann::json& of, Parallelism degrees = {});

}  // namespace troupe::testing
