#include "base/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/file_handle.h"

namespace troupe {

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
