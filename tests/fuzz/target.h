#pragma once
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::fuzz {

/// One way in for bytes from outside. `run` must come back, whatever the bytes are: refusing them
/// with a runtime_error or invalid_argument (inside `refusable`) is well, anything else is a find.
struct Target {
  const char* name;
  void (*run)(std::string_view bytes);
  /// Inputs to begin with, beside those in corpus/NAME/.
  std::vector<std::string> (*seeds)();
  std::size_t max_bytes;
};

/// Returns all targets, by name.
const std::vector<Target>& targets();

/// Runs `action`, and allows what may be thrown at whoever brought the bytes. Running out of
/// memory, a length that nobody checked (length_error, out_of_range) and a JSON library's own
/// exceptions are finds.
template <class F>
void refusable(F&& action) {
  try {
    action();
  } catch (const std::runtime_error&) {
  } catch (const std::invalid_argument&) {
  }
}

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what);
  std::abort();
}

inline std::filesystem::path fixtures() {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "tests" / "fixtures";
}

/// A safetensors file of a header and so many bytes of data.
inline std::string file_of(const std::string& header, std::size_t data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i)
    bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data, 'x');
}

}  // namespace troupe::fuzz
