#include "base/allowed_folders.h"

#include <algorithm>
#include <stdexcept>

namespace troupe {
namespace fs = std::filesystem;

AllowedFolders::AllowedFolders(const std::vector<std::string>& folders) : any_(false) {
  for (const auto& folder : folders) {
    std::error_code error;
    const fs::path real = fs::canonical(folder, error);
    if (error)
      throw std::runtime_error("[model] " + folder + ": cannot be allowed: " + error.message());
    if (!fs::is_directory(real, error))
      throw std::runtime_error("[model] " + folder + ": cannot be allowed: not a folder");
    folders_.push_back(real);
  }
}

std::optional<std::string> AllowedFolders::resolve(const std::string& folder) const {
  if (any_) return folder;
  if (folder.find('\0') != std::string::npos || !fs::path(folder).is_absolute())
    return std::nullopt;
  std::error_code error;
  const fs::path real = fs::weakly_canonical(folder, error);
  if (error) return std::nullopt;
  const bool inside = std::ranges::any_of(folders_, [&](const fs::path& allowed) {
    return std::mismatch(allowed.begin(), allowed.end(), real.begin(), real.end()).first ==
           allowed.end();
  });
  if (!inside) return std::nullopt;
  return real.string();
}

std::optional<std::string> AllowedFolders::refusal_of_links(const std::string& folder) const {
  if (any_ || std::ranges::find(folders_, fs::path(folder)) != folders_.end()) return std::nullopt;
  const auto link = link_out(folder);
  if (!link) return std::nullopt;
  return "[model] " + *link +
         ": is a link out of the folders that may be named here (`--allow-models DIR` of `troupe "
         "start`, or of `troupe serve` for requests over HTTP)";
}

std::optional<std::string> AllowedFolders::link_out(const fs::path& folder, int depth) const {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const fs::path& path = entry->path();
    if (entry->is_symlink(ignored) && !resolve(path.string())) return path.string();
    if (depth == 1 || !entry->is_directory(ignored)) continue;
    if (auto found = link_out(path, depth - 1)) return found;
  }
  return std::nullopt;
}

std::optional<std::string> AllowedFolders::resolve_file(const std::string& file,
                                                        const std::string& beside) const {
  if (any_) return file;
  const fs::path path(file);
  const auto folder = resolve(path.parent_path().string());
  if (!folder || !resolve(file) || !resolve((fs::path(*folder) / beside).string()))
    return std::nullopt;
  return (fs::path(*folder) / path.filename()).string();
}

std::string AllowedFolders::refusal(const std::string& folder) {
  if (!fs::path(folder).is_absolute())
    return "[model] " + folder +
           ": may not be named here: it is no whole path, as the cluster's hosts have it (a "
           "picture names the last part alone), and no model in a Hugging Face cache that may be "
           "named";
  return "[model] " + folder +
         ": may not be named here: `--allow-models DIR` of `troupe start`, or of `troupe serve` "
         "for requests over HTTP, says which folders may";
}

}  // namespace troupe
