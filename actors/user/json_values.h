#pragma once

#include <string>
#include <string_view>

namespace troupe::runtime {

/// A JSON array as the bytes of a method's arguments, by the types that the registry names. Structs
/// are arrays of their fields, an Array is {"dtype", "shape", "data"}, an actor's handle its id, a
/// map with string keys an object. Throws std::invalid_argument naming the argument.
std::string arguments_from_json(std::string_view types, std::string_view json);

/// A result as JSON text. Of an Array only the first 4096 numbers.
std::string json_from_result(std::string_view type, std::string_view bytes);

}  // namespace troupe::runtime
