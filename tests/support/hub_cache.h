#pragma once
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/scratch.h"

namespace troupe::testing {

/// The environment without variables that say where caches are, until this goes.
class CacheVariables {
 public:
  CacheVariables() {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(value ? std::optional<std::string>(value) : std::nullopt);
      unsetenv(name);
    }
  }
  ~CacheVariables() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      before_[i] ? setenv(kNames[i], before_[i]->c_str(), 1) : unsetenv(kNames[i]);
  }
  CacheVariables(const CacheVariables&) = delete;
  CacheVariables& operator=(const CacheVariables&) = delete;
  void set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

 private:
  static constexpr const char* kNames[] = {
      "HF_HUB_CACHE",   "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME",
      "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",  "HOME"};
  std::vector<std::optional<std::string>> before_;
};

/// The Hugging Face cache of this process, until this goes: with one model, an-org/a-model, of two
/// files that hold "{}", laid out as huggingface_hub does.
struct HubCache {
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
  HubCache() {
    namespace fs = std::filesystem;
    fs::create_directories(repository() / "refs/refs/pr");
    fs::create_directories(repository() / "blobs");
    fs::create_directories(snapshot() / "vae");
    scratch.file("models--an-org--a-model/refs/main", kCommit);
    scratch.file("models--an-org--a-model/refs/refs/pr/1", kCommit);
    scratch.file("models--an-org--a-model/blobs/1", "{}");
    fs::create_symlink("../../blobs/1", snapshot() / "model_index.json");
    fs::create_symlink("../../../blobs/1", snapshot() / "vae/config.json");
    variables.set("HF_HUB_CACHE", scratch.path);
  }
  std::filesystem::path repository() const { return scratch.path / "models--an-org--a-model"; }
  std::filesystem::path snapshot() const { return repository() / "snapshots" / kCommit; }

  Scratch scratch;
  CacheVariables variables;
};

}  // namespace troupe::testing
