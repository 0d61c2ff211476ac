#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/scratch.h"

namespace troupe::testing {

/// tests/fixtures/NAME, or what the ctest `made_fixtures` has made of this name: an absolute path.
std::string checkpoint(const std::string& name);

/// Folders like a checkpoint but for their scheduler; they go with this object.
class SchedulerVariants {
 public:
  /// A folder with `name`'s weights and a scheduler of that class with that configuration.
  const std::string& with_scheduler(const std::string& name, const std::string& class_name,
                                    const nlohmann::json& config);

 private:
  Scratch scratch_;
  std::map<std::string, std::string> folders_;
};

}  // namespace troupe::testing
