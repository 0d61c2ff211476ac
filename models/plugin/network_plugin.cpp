#include "models/plugin/network_plugin.h"

#include <utility>

namespace troupe::models {

void NetworkRegistry::add_transformer(const std::string& class_name, MakeNetwork make) {
  user_networks().add(class_name, std::move(make));
}

void NetworkRegistry::add_sampler(const std::string& name, MakeSampler make) {
  user_samplers().add(name, std::move(make));
}

void open_network_plugin(const std::filesystem::path& model_plugin) {
  using Told = spec::plugin::Description<NetworkRegistry>;
  const auto* told = static_cast<const Told*>(spec::plugin::open_library(
      spec::network_half_of(model_plugin), "troupe_network_plugin", "TROUPE_NETWORK_PLUGIN",
      TROUPE_NETWORK_BUILD, TROUPE_NETWORK_LAYOUT, sizeof(Told)));
  NetworkRegistry registry;
  told->add(registry);
}

}  // namespace troupe::models
