#include "base/files.h"

#include <stdexcept>

#include "base/error_text.h"
#include "base/format.h"

namespace troupe {

std::string read_file(const std::string& path, std::size_t limit) {
  const auto fail = [&path](const std::string& why) -> void {
    throw std::runtime_error(path + ": " + why);
  };
  const FileHandle file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) fail(error_text(errno));
  if (!S_ISREG(info.st_mode)) fail("is not a file");
  if (static_cast<std::size_t>(info.st_size) > limit)
    fail(fmt::format("has {} bytes, at most {} are read", info.st_size, limit));
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(error_text(errno));
    if (got == 0) fail("became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string write_whole(const std::filesystem::path& path, std::string_view text, mode_t mode) {
  auto temporary = path;
  temporary += std::string(".").append(std::to_string(getpid()));
  std::error_code error;
  const auto give_up = [&](const std::error_code& why) {
    std::filesystem::remove(temporary, error);
    return why.message();
  };
  const auto last_error = [] { return std::error_code(errno, std::generic_category()); };
  ::unlink(temporary.c_str());
  const FileHandle file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return last_error().message();
  if (::fchmod(file.get(), mode) != 0) return give_up(last_error());
  while (!text.empty()) {
    const auto written = write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return give_up(last_error());
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  std::filesystem::rename(temporary, path, error);
  return error ? give_up(std::error_code(error)) : "";
}

}  // namespace troupe
