#include "client/cli/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "client/cli/verb.h"
#include "models/spec/weight_index.h"

namespace troupe::cli {
namespace {

namespace fs = std::filesystem;

std::string folder_of(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// A file of its own name beside `path`, removed again unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& path)
      : name_(folder_of(path) + "/." + fs::path(path).filename().string() + ".XXXXXX") {
    file_ = mkostemp(name_.data(), O_CLOEXEC);
    if (file_ < 0) throw std::runtime_error(std::strerror(errno));
  }
  ~TemporaryFile() {
    if (file_ >= 0) close(file_);
    if (!renamed_) unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw std::runtime_error(std::strerror(errno));
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void rename_to(const std::string& path) {
    const mode_t mask = umask(0);
    umask(mask);
    const bool flushed = fchmod(file_, 0666 & ~mask) == 0 && fsync(file_) == 0;
    const bool closed = close(std::exchange(file_, -1)) == 0;
    if (!flushed || !closed || std::rename(name_.c_str(), path.c_str()) != 0) {
      throw std::runtime_error(std::strerror(errno));
    }
    renamed_ = true;
  }

 private:
  std::string name_;
  int file_ = -1;
  bool renamed_ = false;
};

/// A device or a pipe would have a file in its place, for everybody.
bool is_no_file(const std::string& path) {
  std::error_code error;
  return fs::is_other(path, error);
}

/// ".png" of "A.PNG"; "" of a name without one.
std::string lower_extension(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  for (char& c : extension)
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return extension;
}

}  // namespace

void write_file(const std::string& path, std::string_view bytes) {
  try {
    if (is_no_file(path)) throw std::runtime_error("it is a device or a pipe, not a file");
    TemporaryFile file(path);
    file.write(bytes);
    file.rename_to(path);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": cannot be written: " + error.what());
  }
}

void check_writable(const std::string& what, const std::string& path) {
  const std::string prefix = what + " " + path + ": cannot be written: ";
  const std::string folder = folder_of(path);
  std::error_code ignored;
  try {
    absolute_path(path);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(what + " " + error.what());
  }
  if (!fs::exists(folder, ignored)) throw std::runtime_error(prefix + "no folder " + folder);
  if (!fs::is_directory(folder, ignored))
    throw std::runtime_error(prefix + folder + " is not a folder");
  if (fs::is_directory(path, ignored)) throw std::runtime_error(prefix + "it is a folder");
  if (is_no_file(path)) throw std::runtime_error(prefix + "it is a device or a pipe, not a file");
  try {
    TemporaryFile probe(path);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(prefix + folder + ": " + error.what());
  }
}

void make_folder(const std::string& option, const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return;
  const std::string prefix = option + " " + path + ": ";
  if (fs::exists(path, error)) throw std::runtime_error(prefix + "is not a folder");
  if (mkdir(path.c_str(), 0777) == 0) return;
  throw std::runtime_error(prefix + (errno == ENOENT
                                         ? "no such folder"
                                         : std::string("cannot be made: ") + std::strerror(errno)));
}

void make_log_folder(std::string& path) {
  if (path.empty()) return;
  path = absolute_path(path);
  make_folder("--keep-logs", path);
}

std::string absolute_path(const std::string& path) {
  if (path.empty()) return "";
  std::error_code error;
  const auto whole = fs::absolute(path, error);
  if (error)
    throw std::runtime_error(path +
                             ": the current folder has been deleted: cd elsewhere, or give "
                             "an absolute path");
  return whole.lexically_normal().string();
}

void check_extension(const std::string& option, const std::string& path,
                     const std::string& wanted) {
  if (path == "-") throw UsageError(option + " -: only --output goes to standard output");
  const std::string extension = lower_extension(path);
  if (extension.empty() || extension == wanted) return;
  throw UsageError(option + " \"" + path + "\": only " + wanted + " is written, not " + extension);
}

bool is_latents_name(const std::string& path) {
  return fs::path(path).extension() == ".safetensors";
}

std::optional<models::ClipFormat> clip_format(const std::string& path) {
  const std::string extension = lower_extension(path);
  if (extension.empty() || extension == ".png") return models::ClipFormat::apng;
  return parse_choice<models::ClipFormat>(extension.substr(1));
}

std::vector<std::string> picture_paths(const std::string& pattern, int count) {
  fs::path path(pattern);
  if (path.filename().empty()) throw UsageError("--output \"" + pattern + "\": names no file");
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    throw UsageError("--output \"" + pattern + "\": it is a folder");
  if (is_no_file(pattern))
    throw UsageError("--output \"" + pattern + "\": it is a device or a pipe, not a file");
  if (path.extension().empty()) path += ".png";
  if (!clip_format(path)) {
    throw UsageError("--output \"" + pattern +
                     "\": only .png is written, .safetensors of latents, and .apng, .webm, .mp4 or "
                     "a folder (DIR/) of a video, not " +
                     path.extension().string());
  }
  std::string text = path.string();
  std::size_t slot = text.find("{}");
  if (slot != std::string::npos && text.find("{}", slot + 2) != std::string::npos)
    throw UsageError("--output \"" + pattern + "\": {} stands for the picture's number, once");
  if (slot == std::string::npos) {
    if (count == 1) return {text};
    slot = text.size() - path.extension().string().size();
    text.insert(slot, "-{}");
    ++slot;
  }
  std::vector<std::string> paths;
  for (int i = 0; i < count; ++i) {
    paths.push_back(std::string(text).replace(slot, 2, std::to_string(i)));
  }
  return paths;
}

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

namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 30;
constexpr const char* kTensor = "latents";

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error("[latents] " + path + ": " + why);
}

}  // namespace

Latents read_latents(const std::string& path) {
  const std::string bytes = read_file(path, kLargestFile);
  const auto index = spec::WeightIndex::read_file(path);
  const spec::TensorEntry* entry = index.find(kTensor);
  if (entry == nullptr) refuse(path, "has no tensor \"latents\"");
  if (entry->dtype != spec::Dtype::float32) refuse(path, "tensor \"latents\" is not float32");
  if (entry->shape.size() != 4) {
    refuse(path, "tensor \"latents\" has shape " + spec::shape_text(entry->shape) +
                     ", not [n, channels, height / 8, width / 8]");
  }
  if (entry->bytes() == 0) refuse(path, "tensor \"latents\" is empty");
  if (entry->end > bytes.size()) refuse(path, "became shorter while it was read");

  Latents latents{.shape = entry->shape,
                  .data = std::vector<float>(entry->bytes() / sizeof(float))};
  std::memcpy(latents.data.data(), bytes.data() + entry->begin, entry->bytes());
  if (const auto odd = first_not_finite(latents.data))
    refuse(path, fmt::format("tensor \"latents\" is not finite at element {}", *odd));
  return latents;
}

std::string latents_file_bytes(const Latents& latents) {
  const std::size_t data_bytes = latents.data.size() * sizeof(float);
  const nlohmann::json header = {
      {kTensor, {{"dtype", "F32"}, {"shape", latents.shape}, {"data_offsets", {0, data_bytes}}}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  bytes += text;
  bytes.append(reinterpret_cast<const char*>(latents.data.data()), data_bytes);
  return bytes;
}

}  // namespace troupe::cli
