#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::cli {

using Row = std::vector<std::string>;

/// Columns two spaces apart, as wide as their widest cell; the heads first. Every line ends with
/// \n.
std::string table(const Row& heads, const std::vector<Row>& rows);

/// "812 MB", "1.4 GB"; "-" for 0.
std::string bytes_text(std::uint64_t bytes);
/// "3 s", "2 min 5 s", "1 h 2 min".
std::string duration_text(double seconds);
/// At most `length` characters, on one line, with … where something was left out.
std::string shorten(const std::string& text, std::size_t length);

}  // namespace troupe::cli
