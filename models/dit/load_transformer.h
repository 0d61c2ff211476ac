#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/weight_loader.h"
#include "models/spec/model_spec.h"

namespace troupe::models {

/// Makes a stage of a transformer that a model plugin's other half has read. Only the weights of
/// `part` are read from `weights`.
using MakeNetwork = std::function<std::unique_ptr<DiffusionTransformer>(
    const spec::UserTransformer& of, const spec::ModelSpec& model, const StagePart& part,
    const WeightLoader& weights, at::ScalarType compute, at::Device device)>;

/// The transformers that plugins have brought into this process, by class. Thread-safe; none ever
/// leaves it.
class UserNetworks {
 public:
  void add(const std::string& class_name, MakeNetwork make);
  /// Throws std::runtime_error where no plugin brought it.
  const MakeNetwork& find(const std::string& class_name) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, MakeNetwork> networks_;
};
UserNetworks& user_networks();

}  // namespace troupe::models
