#pragma once
#include <nlohmann/json.hpp>

#include "transport/json/info_json.h"
#include "troupe/client.h"

namespace troupe::cli {

nlohmann::json to_json(const Error& error);
nlohmann::json to_json(const ClusterInfo& cluster);

/// One document on standard output, indented.
void print_json(const nlohmann::json& document);
/// Prints one document on standard output, on one line.
void print_json_line(const nlohmann::json& document);

}  // namespace troupe::cli
