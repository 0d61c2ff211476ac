#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/inspect.h"

namespace troupe::repl {

/// "[0,2:4,:,-1]" or "0,2:4" as ranges, by dimension. Throws std::invalid_argument naming what is
/// wrong with it.
std::vector<SliceRange> parse_slice(const std::string& text);

/// The values as nested brackets, a line a row of the last dimension: "[[1, 2],\n [3, 4]]".
std::string values_text(const TensorValues& values);

/// "[2, 4, 8]"; "[]" of a single number.
std::string shape_text(const std::vector<std::int64_t>& shape);

}  // namespace troupe::repl
