#pragma once
#include <string>

#include "benchmarks/published_latencies.h"
#include "models/spec/model_spec.h"

namespace troupe::published {

/// Returns whether a model has a published folder to plan for (published_models.h).
bool has_folder(const std::string& model);

/// Times that `troupe plan --simulate` prints for a row: our own engine, the model as published,
/// the machine of the table, its speeds and links included. Seconds of denoising, as the rows are;
/// "best" is what `--parallel auto` picks, exact or by any of a few numbers of patches.
class Simulated {
 public:
  explicit Simulated(const Table& table);
  double seconds(int pixels, const Run& run) const;

 private:
  const Table& table_;
  const spec::ModelSpec& model_;
};

}  // namespace troupe::published
