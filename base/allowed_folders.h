#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

/// Folders of this machine that clients may name for models, LoRAs and embeddings: any, or those
/// given and what lies below them.
class AllowedFolders {
 public:
  /// Allows any folder.
  AllowedFolders() = default;
  /// Allows these folders and what lies below them. Each must exist; throws std::runtime_error
  /// naming one that does not.
  explicit AllowedFolders(const std::vector<std::string>& folders);

  /// Returns the folder itself, links and ".." followed to their end, so that what was looked at is
  /// what is read; or nothing, where clients may not name it. Looks at the file system: not for a
  /// loop.
  std::optional<std::string> resolve(const std::string& folder) const;

  /// Returns why a resolved folder is refused for a link in it, or in a folder of it, that leads to
  /// what clients may not name; nothing where there is none. Links in a folder that is allowed by
  /// its own name are its owner's choice, as those in a snapshot of a hub's cache.
  std::optional<std::string> refusal_of_links(const std::string& folder) const;

  /// A file in such a folder, under its own name: the folder is as `resolve` says, and the file and
  /// the one called `beside` next to it, where they are links, lead to what clients may name.
  std::optional<std::string> resolve_file(const std::string& file,
                                          const std::string& beside = {}) const;

  /// Returns the first link in a resolved folder, or in a folder of it, that leads to what clients
  /// may not name; nothing where there is none.
  std::optional<std::string> link_out(const std::filesystem::path& folder) const {
    return link_out(folder, 2);  // a model's parts, and their files
  }

  /// Returns "[model] FOLDER: …", the same whether the folder exists or not.
  static std::string refusal(const std::string& folder);
  /// Returns whether any folder may be named.
  bool any() const { return any_; }

 private:
  std::optional<std::string> link_out(const std::filesystem::path& folder, int depth) const;

  bool any_ = true;
  std::vector<std::filesystem::path> folders_;
};

}  // namespace troupe
