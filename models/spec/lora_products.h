#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/spec/lora_names.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// A component's products by name; weights are matrices [rows, columns].
class LoraProducts {
 public:
  struct Size {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };

  LoraProducts() = default;
  LoraProducts(const WeightIndex& weights, std::vector<LoraAlias> aliases);

  /// Returns null if there is no product of that name. kohya's names have '_' for each '.'.
  const std::vector<LoraPart>* find(const std::string& name, bool kohya) const;
  Size size(const std::string& tensor) const;

 private:
  void add(LoraAlias alias);

  std::map<std::string, Size> sizes_;
  std::map<std::string, std::vector<LoraPart>> dotted_, flat_;
};

}  // namespace troupe::spec
