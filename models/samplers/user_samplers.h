#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "models/samplers/sampler.h"

namespace troupe::models {

/// Makes a sampler for a run; `json` is the text of scheduler_config.json.
using MakeSampler =
    std::function<std::unique_ptr<Sampler>(const std::string& json, const SamplerRun& run)>;

/// The samplers that model plugins have brought into this process, by their short names.
/// Thread-safe; none ever leaves it.
class UserSamplers {
 public:
  void add(const std::string& name, MakeSampler make);
  /// Throws std::runtime_error where no plugin brought it.
  const MakeSampler& find(const std::string& name) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, MakeSampler> samplers_;
};
UserSamplers& user_samplers();

}  // namespace troupe::models
