#include "client/repl/call_arguments.h"

#include <nlohmann/json.hpp>

namespace troupe::repl {

std::string call_arguments(const Words& words) {
  using nlohmann::json;
  json arguments = json::array();
  for (const std::string& word : words) {
    auto value = json::parse(word, nullptr, /*allow_exceptions=*/false);
    arguments.push_back(value.is_discarded() ? json(word) : std::move(value));
  }
  return arguments.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe::repl
