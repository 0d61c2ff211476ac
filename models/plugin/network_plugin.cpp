#include "models/plugin/network_plugin.h"

#include <utility>
#include <vector>

namespace troupe::models {

void NetworkRegistry::take(const std::string& what, const std::string& name) {
  if (spec::user_models().brought_by(name) != model_plugin_)
    spec::plugin::refuse(
        spec::network_half_of(model_plugin_).string(),
        "brings the " + what + " \"" + name + "\", which " + model_plugin_ + " does not");
  names_.insert(name);
}

void NetworkRegistry::check_whole() const {
  const auto check = [this](const std::string& what, const std::vector<std::string>& all) {
    for (const auto& name : all)
      if (spec::user_models().brought_by(name) == model_plugin_ && !names_.contains(name))
        spec::plugin::refuse(
            spec::network_half_of(model_plugin_).string(),
            "does not bring the " + what + " \"" + name + "\", which " + model_plugin_ + " does");
  };
  check("transformer class", spec::user_models().classes());
  check("sampler", spec::user_models().sampler_names());
}

void NetworkRegistry::add_transformer(const std::string& class_name, MakeNetwork make) {
  take("transformer class", class_name);
  user_networks().add(class_name, std::move(make));
}

void NetworkRegistry::add_sampler(const std::string& name, MakeSampler make) {
  take("sampler", name);
  user_samplers().add(name, std::move(make));
}

void open_network_plugin(const std::filesystem::path& model_plugin) {
  using Told = spec::plugin::Description<NetworkRegistry>;
  const auto* told = static_cast<const Told*>(spec::plugin::open_library(
      spec::network_half_of(model_plugin), "troupe_network_plugin", "TROUPE_NETWORK_PLUGIN",
      TROUPE_NETWORK_BUILD, TROUPE_NETWORK_LAYOUT, sizeof(Told)));
  NetworkRegistry registry(model_plugin.string());
  told->add(registry);
  registry.check_whole();
}

}  // namespace troupe::models
