#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace troupe::spec {

/// Returns whether a regular file, or a folder, is there. Throws std::runtime_error for a path that
/// cannot be looked at, and for a link to what is not there.
bool is_file(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

/// The bytes of a regular file. Throws std::runtime_error if it is missing, unreadable, larger
/// than `max_bytes` or a pointer of Git LFS.
std::string read_text_file(const std::filesystem::path& file, std::uint64_t max_bytes);

/// The reason to refuse a file that begins as a pointer of Git LFS does, which is not the file that
/// it stands for; empty for any other.
std::string lfs_pointer_text(std::string_view begin);

/// Turns what Python's json module writes into JSON proper: the bare words NaN, Infinity and
/// -Infinity become strings of the same spelling, which ConfigReader::number reads back.
std::string standard_json(std::string_view text);

/// Most values that a document may have; a model's description has far fewer.
inline constexpr std::size_t kMaxJsonValues = 1'000'000;

/// Parses one JSON document, in time that grows with its length. Refuses syntax errors, nesting
/// beyond 64 levels, keys that occur twice in one object and more than `max_values` values; every
/// error names `file`.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file,
                          std::size_t max_values = kMaxJsonValues);

}  // namespace troupe::spec
