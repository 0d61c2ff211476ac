#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/models.h"
#include "tests/process/support/tensors.h"
#include "troupe/client.h"

namespace troupe::testing {

/// One part of expected/ in tests/fixtures, or in what `made_fixtures` has made: cases and their
/// tensors.
class Reference {
 public:
  explicit Reference(const std::string& part);

  const std::vector<nlohmann::json>& cases() const { return cases_; }
  const nlohmann::json& find(const std::string& name) const;
  /// Tensor CASE.KEY.
  Latents floats(const nlohmann::json& of, const std::string& key) const {
    return tensors_.floats(of.at("name").get<std::string>() + "." + key);
  }
  Bytes bytes(const nlohmann::json& of, const std::string& key) const {
    return tensors_.bytes(of.at("name").get<std::string>() + "." + key);
  }
  /// Returns the submission that asks a cluster for this case, latents included. A case that names
  /// a scheduler gets a folder with it, unless the checkpoint's own is the same.
  Submission submission(const nlohmann::json& of, Parallelism degrees = {});

 private:
  std::string model_of(const nlohmann::json& of);

  nlohmann::json manifest_;
  std::vector<nlohmann::json> cases_;
  TensorFile tensors_;
  SchedulerVariants variants_;
};

}  // namespace troupe::testing
