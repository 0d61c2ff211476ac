#include "models/samplers/user_samplers.h"

#include <stdexcept>

namespace troupe::models {

void UserSamplers::add(const std::string& name, MakeSampler make) {
  const std::lock_guard lock(mutex_);
  samplers_[name] = std::move(make);
}

const MakeSampler& UserSamplers::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = samplers_.find(name);
  if (found != samplers_.end()) return found->second;
  throw std::runtime_error("[model plugin] the sampler \"" + name +
                           "\" is known, but no network half of a plugin has brought it");
}

UserSamplers& user_samplers() {
  static UserSamplers samplers;
  return samplers;
}

}  // namespace troupe::models
