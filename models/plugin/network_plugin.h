#pragma once

#include <torch/headeronly/version.h>

#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "models/dit/load_transformer.h"
#include "models/samplers/user_samplers.h"
#include "models/spec/model_plugin.h"

// The half of a model plugin that computes. It lies beside the half that models/spec/model_plugin.h
// speaks of: libNAME.so and libNAME_network.so.

namespace troupe::models {

/// Registry that a plugin's entry point adds networks and samplers to, by the names that the
/// plugin's other half has brought.
class NetworkRegistry {
 public:
  /// Throws std::runtime_error for a name that the plugin's other half has not brought.
  void add_transformer(const std::string& class_name, MakeNetwork make);
  /// Adds a sampler by its short name. Throws as `add_transformer`.
  void add_sampler(const std::string& name, MakeSampler make);

 private:
  friend void open_network_plugin(const std::filesystem::path& model_plugin);
  explicit NetworkRegistry(std::string model_plugin) : model_plugin_(std::move(model_plugin)) {}
  void take(const std::string& what, const std::string& name);
  /// Throws if a class or sampler of the plugin's other half has not been added here.
  void check_whole() const;

  std::string model_plugin_;
  std::set<std::string> names_;
};

/// TROUPE_NETWORK_PLUGIN(add): in one source file of libNAME_network.so, with a function
/// `void add(troupe::models::NetworkRegistry&)`.
#define TROUPE_NETWORK_BUILD TROUPE_MODEL_BUILD " LibTorch " TORCH_VERSION
#define TROUPE_NETWORK_LAYOUT                                                     \
  (TROUPE_MODEL_LAYOUT ^                                                          \
   troupe::spec::plugin::layout_of(                                               \
       {sizeof(troupe::models::StagePart), sizeof(troupe::models::CallTokens),    \
        sizeof(troupe::models::EncoderOutput), sizeof(troupe::models::StepInput), \
        sizeof(troupe::models::WeightLoader), sizeof(troupe::kernels::Linear),    \
        sizeof(troupe::models::SamplerRun), sizeof(troupe::models::NetworkRegistry)}))
#define TROUPE_NETWORK_PLUGIN(add_to)                                                         \
  extern "C" [[gnu::visibility("default")]] const void* troupe_network_plugin() {             \
    using Registry = troupe::models::NetworkRegistry;                                         \
    static const troupe::spec::plugin::Description<Registry> description{                     \
        troupe::spec::plugin::kModelAbi, sizeof(troupe::spec::plugin::Description<Registry>), \
        TROUPE_NETWORK_BUILD, TROUPE_NETWORK_LAYOUT, add_to};                                 \
    return &description;                                                                      \
  }

/// Opens libNAME_network.so beside the model plugin libNAME.so, which is open. Throws as
/// spec::open_model_plugin.
void open_network_plugin(const std::filesystem::path& model_plugin);

}  // namespace troupe::models
