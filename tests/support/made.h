#pragma once
#include <cstdio>
#include <filesystem>

namespace troupe::testing {

/// Folder of what the ctest `made_fixtures` makes.
inline const std::filesystem::path kMade = TROUPE_BINARY_DIR "/made-fixtures";

/// Returns whether the fixtures could not be made here, and says so: by these words ctest counts
/// the test as skipped.
inline bool lacks_made_fixtures() {
  if (std::filesystem::exists(kMade / "stamp")) return false;
  std::puts("[tests] no made fixtures: scripts/fixtures --made could not make its environment");
  return true;
}

}  // namespace troupe::testing
