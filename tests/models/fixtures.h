#pragma once
#include <filesystem>

namespace troupe::models::testing {

inline const std::filesystem::path kRoot = TROUPE_SOURCE_DIR;
inline const std::filesystem::path kFixtures = kRoot / "tests/fixtures";

}  // namespace troupe::models::testing
