#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troupe::spec {

/// The bytes of a regular file. Throws std::runtime_error if it is missing, unreadable or larger
/// than `max_bytes`.
std::string read_text_file(const std::filesystem::path& file, std::uint64_t max_bytes);

/// Turns what Python's json module writes into JSON proper: the bare words NaN, Infinity and
/// -Infinity become strings of the same spelling, which ConfigReader::number reads back.
std::string standard_json(std::string_view text);

/// Parses one JSON document. Refuses syntax errors, nesting beyond 64 levels and keys that occur
/// twice in one object; every error names `file`.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file);

}  // namespace troupe::spec
