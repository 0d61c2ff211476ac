#pragma once
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/published_latencies.h"
#include "controller/mesh/mesh.h"
#include "controller/plan/cost_model.h"

namespace troupe::published {

/// Constants of the cost model by name, so that a refit can print and change them.
using Constants = std::map<std::string, double>;

/// Constants of the published engines. Microseconds: of an eager operation on a quick host, of a
/// call of torch.distributed, around a message of a pipeline, of an operation in a CUDA graph.
/// Shares: of the operations that torch.compile leaves, with and without breaks, and of the values
/// that they read and write beside the products.
const Constants& engine_constants();

/// Constants that a refit begins with: data sheets' values for machines, and guesses for engines
/// that use nothing of the published runs.
Constants data_sheets();

struct Prediction {
  double seconds = std::numeric_limits<double>::infinity();
  std::string mix;
};

/// Predicts a table's rows by the cost model, with the engine that they were measured with: xDiT as
/// its code is, or one like it. Machines are those of controller/plan/machine.h, unless the
/// constants have them, too.
class Simulation {
 public:
  explicit Simulation(const Table& table, const Constants& constants = engine_constants());
  Prediction predict(int pixels, const Run& run) const;

 private:
  void consider(Prediction& best, int pixels, Method method, int patches, int warmup,
                const mesh::Degrees& degrees, PatchExchange exchange = PatchExchange::stale) const;
  void consider_patches(Prediction& best, int pixels, int warmup,
                        const mesh::Degrees& degrees) const;
  void consider_all(Prediction& best, int pixels, int devices) const;

  const Table& table_;
  const plan::ModelShape model_;
  const plan::Machine machine_;
  const plan::Engine engine_;
};

/// Returns the tables of all sources.
std::vector<Table> all_tables();

/// Predicted ÷ published − 1, by row.
struct Errors {
  std::vector<double> of_rows;

  void add(const Errors& more);
  /// Median of the errors' sizes, without signs.
  double median() const;
  /// Geometric mean of predicted ÷ published.
  double mean() const;
  double worst() const;
  long beyond(double bound) const;
};

}  // namespace troupe::published
