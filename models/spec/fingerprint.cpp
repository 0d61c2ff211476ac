#include "models/spec/fingerprint.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/gguf.h"
#include "models/spec/lora_spec.h"
#include "models/spec/torch_file.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

/// FNV-1a, 64 bits.
class Hash {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes)
      value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001b3U;
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8)
      value_ = (value_ ^ (number >> shift & 0xffU)) * 0x100000001b3U;
  }
  std::uint64_t value() const { return value_ == 0 ? 1 : value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

std::uint64_t nanoseconds(const timespec& time) {
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U +
         static_cast<std::uint64_t>(time.tv_nsec);
}

void add_file(Hash& hash, const fs::path& file, std::string_view name) {
  struct stat state {};
  if (stat(file.c_str(), &state) != 0 || !S_ISREG(state.st_mode)) return;
  hash.add(name);
  hash.add(name.size());
  for (const std::uint64_t number :
       {static_cast<std::uint64_t>(state.st_dev), static_cast<std::uint64_t>(state.st_ino),
        static_cast<std::uint64_t>(state.st_size), nanoseconds(state.st_mtim),
        nanoseconds(state.st_ctim)})  // a copy that keeps the old times still changes this one
    hash.add(number);
}

bool is_read(const fs::path& file) {
  constexpr std::array<std::string_view, 2> kRead = {".json", ".model"};
  constexpr std::array<std::string_view, 3> kTexts = {"merges.txt", "vocab.txt",
                                                      "chat_template.jinja"};
  return is_weight_file(file) || is_torch_name(file) ||
         std::ranges::find(kRead, file.extension().native()) != kRead.end() ||
         std::ranges::find(kTexts, file.filename().native()) != kTexts.end();
}

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    entries.push_back(entry->path());
  std::ranges::sort(entries);
  return entries;
}

}  // namespace

std::uint64_t fingerprint(const fs::path& folder) {
  Hash hash;
  hash.add(folder.native());
  std::error_code error;
  const fs::path index = folder / "model_index.json";
  if (!fs::is_regular_file(index, error)) {
    if (fs::is_regular_file(folder / "config.json", error))
      for (const auto& file : sorted_entries(folder))
        if (is_read(file)) add_file(hash, file, file.filename().native());
    return hash.value();
  }
  add_file(hash, index, "model_index.json");
  for (const auto& component : sorted_entries(folder)) {
    if (!fs::is_directory(component, error)) continue;
    for (const auto& file : sorted_entries(component)) {
      if (is_read(file)) add_file(hash, file, (component.filename() / file.filename()).native());
    }
  }
  return hash.value();
}

std::uint64_t bytes_fingerprint(std::string_view bytes) {
  Hash hash;
  hash.add(bytes);
  return hash.value();
}

std::uint64_t lora_fingerprint(const fs::path& file) {
  Hash hash;
  hash.add(file.native());
  add_file(hash, file, "");
  add_file(hash, file.parent_path() / kAdapterConfig, kAdapterConfig);
  return hash.value();
}

}  // namespace troupe::spec
