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

/// All of them, by name.
const std::vector<Target>& targets();

/// What may be thrown at whoever brought the bytes. Running out of memory, a length that nobody
/// checked (length_error, out_of_range) and a JSON library's own exceptions are finds.
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

/// A folder of this process for readers that want files; gone with the process.
class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-fuzz-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no scratch folder");
    path_ = name;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Writes a file and returns its path.
  std::filesystem::path file(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::filesystem::path fixtures() {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "tests" / "fixtures";
}

}  // namespace troupe::fuzz
