#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// A type as the registry names it, taken apart: "map<string, list<int32>>".
struct TypeTree {
  std::string name;             // "map", "int64", "Point", or a number inside array<T, N>
  bool is_struct = false;       // {…} behind the name
  std::vector<TypeTree> inner;  // what stands in <> or {}
};

/// "int64, list<string>" → its types. Throws std::invalid_argument for text that is none.
std::vector<TypeTree> parse_types(std::string_view text);

}  // namespace troupe::runtime
