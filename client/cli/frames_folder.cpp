#include "client/cli/frames_folder.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <stdexcept>

#include "base/format.h"
#include "client/cli/files.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

/// The text that an actor puts into its pictures stands before the pixels, the prompts' limit
/// keeps it within this.
constexpr std::size_t kBeginning = 512 << 10;

bool is_frame_name(const std::string& name) {
  static const std::regex kFrame("([0-9]+-)?[0-9]{4,}\\.png");
  return std::regex_match(name, kFrame);
}

bool is_ours(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string bytes(kBeginning, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(in.gcount()));
  using namespace std::string_literals;
  return bytes.starts_with("\x89PNG") && (bytes.find("tEXttroupe\0"s) != std::string::npos ||
                                          bytes.find("iTXttroupe\0"s) != std::string::npos);
}

/// Files in the folder whose names are those of frames.
std::vector<fs::path> frames_in(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (is_frame_name(at->path().filename().string())) found.push_back(at->path());
  }
  return found;
}

}  // namespace

bool is_folder_name(const std::string& path) {
  return path.ends_with('/');
}

void check_frames_folder(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored))
    return check_writable("--output", fs::path(path).parent_path().string());
  check_writable("--output", path + "0000.png");
  for (const fs::path& file : frames_in(path)) {
    if (is_ours(file)) continue;
    throw std::runtime_error(
        "--output " + path + ": " + file.filename().string() +
        " there is not a frame that troupe has written: choose another folder");
  }
}

std::vector<std::string> write_frames(const std::string& path,
                                      const std::vector<std::vector<std::string>>& pictures) {
  make_folder("--output", path);
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    for (std::size_t frame = 0; frame < pictures[i].size(); ++frame) {
      char name[32];
      std::snprintf(name, sizeof name, "%04zu.png", frame);
      const std::string of = pictures.size() > 1 ? fmt::format("{}-", i) : "";
      paths.push_back(path + of + name);
      write_file(paths.back(), pictures[i][frame]);
    }
  }
  std::set<std::string> written;
  for (const std::string& file : paths)
    written.insert(fs::path(file).filename().string());
  for (const fs::path& file : frames_in(path)) {
    if (written.contains(file.filename().string()) || !is_ours(file)) continue;
    std::error_code error;
    if (!fs::remove(file, error) && error)
      throw std::runtime_error(file.string() +
                               ": an older frame, cannot be removed: " + error.message());
  }
  return paths;
}

}  // namespace troupe::cli
