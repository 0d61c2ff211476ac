#include "tests/process/support/models.h"

#include <fstream>

namespace troupe::testing {
namespace fs = std::filesystem;

std::string checkpoint(const std::string& name) {
  const fs::path stored = fs::path(TROUPE_SOURCE_DIR "/tests/fixtures") / name;
  if (fs::exists(stored)) return stored;
  return fs::path(TROUPE_BINARY_DIR "/made-fixtures") / name;
}

const std::string& SchedulerVariants::with_scheduler(const std::string& name,
                                                     const std::string& class_name,
                                                     const nlohmann::json& config) {
  auto& folder = folders_[name + class_name + config.dump()];
  if (!folder.empty()) return folder;
  folder = scratch_ / (name + "-" + std::to_string(folders_.size()));
  fs::create_directories(fs::path(folder) / "scheduler");
  for (const auto& part : fs::directory_iterator(checkpoint(name))) {
    const auto own = part.path().filename();
    if (part.is_directory() && own != "scheduler")
      fs::create_directory_symlink(part.path(), fs::path(folder) / own);
  }
  auto index =
      nlohmann::json::parse(std::ifstream(fs::path(checkpoint(name)) / "model_index.json"));
  index["scheduler"] = {"diffusers", class_name};
  std::ofstream(fs::path(folder) / "model_index.json") << index.dump(1);
  auto written = config;
  written["_class_name"] = class_name;
  std::ofstream(fs::path(folder) / "scheduler/scheduler_config.json") << written.dump(1);
  return folder;
}

}  // namespace troupe::testing
