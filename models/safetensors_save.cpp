#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "models/safetensors.h"

namespace troupe::models {
namespace {

constexpr std::size_t kHeaderAlignment = 8;
constexpr std::size_t kMaxWrite = std::size_t{1} << 30U;

[[noreturn]] void fail_to_save(const std::filesystem::path& path, const std::string& why) {
  throw std::runtime_error("[save_safetensors] " + path.string() + ": " + why);
}

/// A file beside the target that becomes the target, or goes away.
class PendingFile {
 public:
  explicit PendingFile(std::filesystem::path target) : target_(std::move(target)) {
    for (int attempt = 0; descriptor_ < 0; ++attempt) {
      temporary_ = target_;
      temporary_ += ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(attempt);
      descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (descriptor_ < 0 && errno != EEXIST) fail_with_errno();
    }
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!kept_) ::unlink(temporary_.c_str());
  }

  void write(const void* data, std::size_t size) {
    const auto* bytes = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(descriptor_, bytes, std::min(size, kMaxWrite));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail_with_errno();
      bytes += written;
      size -= static_cast<std::size_t>(written);
    }
  }

  void keep() {
    if (::fdatasync(descriptor_) != 0 && errno != EINVAL) fail_with_errno();
    if (::close(std::exchange(descriptor_, -1)) != 0) fail_with_errno();
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_with_errno();
    kept_ = true;
  }

 private:
  [[noreturn]] void fail_with_errno() {
    const int error = errno;
    fail_to_save(target_, std::generic_category().message(error));
  }

  std::filesystem::path target_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  bool kept_ = false;
};

}  // namespace

void save_safetensors(const std::filesystem::path& path,
                      const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, at::Tensor>> ordered;
  for (const auto& [name, tensor] : tensors) {
    ordered.emplace_back(name, tensor.to(at::kCPU).contiguous());
  }
  std::ranges::stable_sort(ordered, std::ranges::greater{},
                           [](const auto& item) { return item.second.element_size(); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : ordered) {
    if (name == "__metadata__") fail_to_save(path, "a tensor cannot be named __metadata__");
    const std::size_t end = offset + tensor.nbytes();
    header[name] = {{"dtype", spec::safetensors_dtype_name(dtype_of(tensor.scalar_type()))},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  unsigned char prefix[8];
  for (std::size_t i = 0; i < sizeof prefix; ++i) {
    prefix[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  }
  PendingFile file(path);
  file.write(prefix, sizeof prefix);
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : ordered)
    file.write(tensor.const_data_ptr(), tensor.nbytes());
  file.keep();
}

}  // namespace troupe::models
