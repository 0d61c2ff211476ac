#include "models/dit/user_networks.h"

#include <stdexcept>

namespace troupe::models {

void UserNetworks::add(const std::string& class_name, MakeNetwork make) {
  const std::lock_guard lock(mutex_);
  networks_[class_name] = std::move(make);
}

const MakeNetwork& UserNetworks::find(const std::string& class_name) const {
  const std::lock_guard lock(mutex_);
  const auto found = networks_.find(class_name);
  if (found != networks_.end()) return found->second;
  throw std::runtime_error("[model plugin] the transformer class \"" + class_name +
                           "\" is known, but no network half of a plugin has brought it");
}

UserNetworks& user_networks() {
  static UserNetworks networks;
  return networks;
}

}  // namespace troupe::models
