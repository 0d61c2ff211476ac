#include "models/safetensors.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/numbers.h"

namespace troupe::models {
namespace {

constexpr std::int64_t kFiniteGrain = 1 << 18;

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_safetensors] " + file.string() + ": " + why);
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

template <typename Bits>
std::int64_t first_not_finite(const void* data, std::int64_t count, Bits exponent) {
  const auto* values = static_cast<const Bits*>(data);
  std::atomic<std::int64_t> first{count};
  at::parallel_for(0, count, kFiniteGrain, [&](std::int64_t begin, std::int64_t end) {
    bool bad = false;
    for (std::int64_t i = begin; i < end; ++i)
      bad |= (values[i] & exponent) == exponent;
    if (!bad) return;
    std::int64_t at = begin;
    while ((values[at] & exponent) != exponent)
      ++at;
    std::int64_t seen = first.load();
    while (at < seen && !first.compare_exchange_weak(seen, at)) {
    }
  });
  return first;
}

std::string index_text(const at::Tensor& tensor, std::int64_t flat) {
  std::string text;
  for (std::int64_t d = tensor.dim() - 1; d >= 0; --d) {
    text = std::to_string(flat % tensor.size(d)) + (text.empty() ? "" : ", ") + text;
    flat /= tensor.size(d);
  }
  return "[" + text + "]";
}

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

at::ScalarType scalar_type(spec::Dtype dtype) {
  switch (dtype) {
    case spec::Dtype::float32:
      return at::kFloat;
    case spec::Dtype::bfloat16:
      return at::kBFloat16;
    case spec::Dtype::float16:
      return at::kHalf;
    case spec::Dtype::float64:
      return at::kDouble;
    case spec::Dtype::int64:
      return at::kLong;
    case spec::Dtype::int32:
      return at::kInt;
    case spec::Dtype::int8:
      return at::kChar;
    case spec::Dtype::uint8:
      return at::kByte;
    case spec::Dtype::boolean:
      return at::kBool;
    case spec::Dtype::float8_e4m3:
      return at::kFloat8_e4m3fn;
    case spec::Dtype::float8_e5m2:
      return at::kFloat8_e5m2;
    default:  // blocks
      break;
  }
  throw std::invalid_argument("[scalar_type] unknown dtype");
}

spec::Dtype dtype_of(at::ScalarType type) {
  using spec::Dtype;
  for (Dtype dtype :
       {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64, Dtype::int64, Dtype::int32,
        Dtype::int8, Dtype::uint8, Dtype::boolean, Dtype::float8_e4m3, Dtype::float8_e5m2}) {
    if (scalar_type(dtype) == type) return dtype;
  }
  throw std::invalid_argument(std::string("[dtype_of] ") + c10::toString(type) +
                              " has no safetensors counterpart here");
}

void require_finite(const at::Tensor& tensor, const std::string& what) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous() && tensor.device().is_cpu());
  const std::int64_t count = tensor.numel();
  std::int64_t first = count;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      first = first_not_finite<std::uint32_t>(tensor.const_data_ptr(), count, 0x7f800000U);
      break;
    case at::kBFloat16:
      first = first_not_finite<std::uint16_t>(tensor.const_data_ptr(), count, 0x7f80U);
      break;
    case at::kHalf:
      first = first_not_finite<std::uint16_t>(tensor.const_data_ptr(), count, 0x7c00U);
      break;
    case at::kDouble:
      first =
          first_not_finite<std::uint64_t>(tensor.const_data_ptr(), count, 0x7ff0000000000000ULL);
      break;
    default:
      return;
  }
  if (first == count) return;
  const double value = tensor.view(-1)[first].item<double>();
  throw std::runtime_error("[require_finite] " + what + index_text(tensor, first) + " is " +
                           number_text(value) + ", which is not finite");
}

/// The mapped files of this process. A page of one that is no longer there, because the file was
/// cut short, would end the process (SIGBUS): it is given zeros instead, and that is remembered.
class MappedFiles {
 public:
  struct Place {
    std::atomic<std::byte*> begin = nullptr;  // null: free
    std::atomic<std::uint64_t> size = 0;
    std::atomic<bool> cut = false;
    std::filesystem::path file;  // this and the next behind `mutex_`
    std::uint64_t number = 0;
  };

  static MappedFiles& all() {
    static MappedFiles& files = *new MappedFiles();  // for mappings that end with the process
    return files;
  }

  /// Adds a mapping to those that are watched; returns null, and the mapping is not watched, if
  /// there are too many.
  Place* add(std::byte* data, std::uint64_t size, const std::filesystem::path& file) {
    const std::lock_guard lock(mutex_);
    const auto free = std::ranges::find_if(
        places_, [](const Place& place) { return place.begin.load() == nullptr; });
    ++made_;
    if (free == places_.end()) return nullptr;
    free->file = file;
    free->number = made_;
    free->cut = false;
    free->size = size;
    free->begin = data;
    return &*free;
  }
  void remove(Place& place) {
    const std::lock_guard lock(mutex_);
    place.begin = nullptr;
  }
  std::uint64_t made() {
    const std::lock_guard lock(mutex_);
    return made_;
  }
  void require_whole(std::uint64_t since, const std::filesystem::path& below) {
    if (!any_cut_) return;
    const std::lock_guard lock(mutex_);
    for (const Place& place : places_) {
      if (place.begin.load() == nullptr || !place.cut || place.number <= since) continue;
      if (place.file.native().starts_with((below / "").native()))
        fail(place.file, "became shorter while it was in use");
    }
  }

 private:
  MappedFiles() : page_(static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE))) {
    struct sigaction action {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      if (!all().meet_fault(static_cast<std::byte*>(info->si_addr))) ::signal(SIGBUS, SIG_DFL);
    };
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
  }

  /// Called by the signal: no locks, no memory. False where the address is of no mapped file.
  bool meet_fault(std::byte* at) {
    for (Place& place : places_) {
      std::byte* begin = place.begin;
      const std::uint64_t size = place.size;
      if (begin == nullptr || at < begin || at >= begin + size) continue;
      std::byte* page = at - reinterpret_cast<std::uintptr_t>(at) % page_;
      const int before = errno;
      const void* made = ::mmap(page, static_cast<std::size_t>(begin + size - page), PROT_READ,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      errno = before;
      place.cut = any_cut_ = true;
      return made != MAP_FAILED;
    }
    return false;
  }

  const std::uint64_t page_;
  std::mutex mutex_;
  std::uint64_t made_ = 0;
  std::atomic<bool> any_cut_ = false;
  std::array<Place, 4096> places_;
};

std::uint64_t mappings_made() {
  return MappedFiles::all().made();
}

void require_whole_files(std::uint64_t since, const std::filesystem::path& below) {
  MappedFiles::all().require_whole(since, below);
}

class WeightStore::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) fail(file, error_text(errno));
    struct stat status {};
    const bool known = ::fstat(descriptor, &status) == 0;
    int error = known ? 0 : errno;
    size_ = known ? static_cast<std::uint64_t>(status.st_size) : 0;
    if (size_ > 0) {
      void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
      if (data == MAP_FAILED) {
        error = errno;
      } else {
        data_ = static_cast<std::byte*>(data);
        place_ = MappedFiles::all().add(data_, size_, file);
      }
    }
    ::close(descriptor);
    if (error != 0) fail(file, error_text(error));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (place_ != nullptr) MappedFiles::all().remove(*place_);
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

  void release(std::uint64_t begin, std::uint64_t end) const {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    begin -= begin % page;
    if (end > begin) ::madvise(data_ + begin, end - begin, MADV_DONTNEED);
  }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  MappedFiles::Place* place_ = nullptr;
};

WeightStore::WeightStore(spec::WeightIndex index) : index_(std::move(index)) {
  for (const auto& file : index_.files()) {
    mappings_.emplace(file, std::make_shared<const Mapping>(file));
  }
  for (const auto& entry : index_.tensors()) {
    const std::uint64_t size = mapping_of(entry)->size();
    if (entry.end > size) {
      fail(entry.file, "tensor \"" + entry.name + "\" ends at " + std::to_string(entry.end) +
                           ", file has " + std::to_string(size) + " bytes");
    }
  }
}

const std::shared_ptr<const WeightStore::Mapping>& WeightStore::mapping_of(
    const spec::TensorEntry& entry) const {
  return mappings_.at(entry.file);
}

/// The values of an entry whose type has to be unpacked, in the order in which they are stored.
at::Tensor WeightStore::unpacked(const spec::TensorEntry& entry) const {
  const auto& mapping = mapping_of(entry);
  at::Tensor values = at::empty({static_cast<std::int64_t>(entry.elements())}, at::kFloat);
  unpack_weights(entry.dtype, {mapping->data() + entry.begin, entry.bytes()},
                 {values.mutable_data_ptr<float>(), entry.elements()});
  if (entry.scale_at) {
    float scale = 1;
    std::memcpy(&scale, mapping->data() + *entry.scale_at, sizeof scale);
    values.mul_(scale);
  }
  return values;
}

at::Tensor WeightStore::get(std::string_view name) const {
  const auto& entry = index_.at(name);
  at::Tensor stored;
  if (spec::needs_unpacking(entry.dtype)) {
    stored = unpacked(entry);
  } else {
    const auto options = at::TensorOptions().dtype(scalar_type(entry.dtype));
    if (entry.bytes() == 0) return at::empty(entry.shape, options);
    const auto& mapping = mapping_of(entry);
    std::byte* data = mapping->data() + entry.begin;
    if (entry.begin % spec::dtype_bytes(entry.dtype) != 0) {
      stored = at::empty(entry.shape, options);
      std::memcpy(stored.mutable_data_ptr(), data, entry.bytes());
    } else {
      stored = at::from_blob(
          data, entry.shape, [mapping](void*) {}, options);
    }
  }
  switch (entry.stored_as) {
    case spec::StoredAs::as_is:
      return stored.view(entry.shape);
    case spec::StoredAs::transposed:
      return stored.view({entry.shape.at(1), entry.shape.at(0)}).t().contiguous();
    case spec::StoredAs::halves_swapped:
      return stored.view(entry.shape).roll(entry.shape.at(0) / 2, 0);
  }
  throw std::logic_error("[load_safetensors] unknown order of a tensor");
}

at::Tensor WeightStore::rows(std::string_view name, const at::Tensor& ids) const {
  const auto& entry = index_.at(name);
  if (!spec::needs_unpacking(entry.dtype) || entry.stored_as != spec::StoredAs::as_is)
    return get(name).index_select(0, ids);
  const std::uint64_t row_bytes = entry.bytes() / static_cast<std::uint64_t>(entry.shape.at(0));
  std::vector<at::Tensor> rows;
  const at::Tensor flat = ids.contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    auto row = entry;
    row.begin += row_bytes * static_cast<std::uint64_t>(flat.const_data_ptr<std::int64_t>()[i]);
    row.end = row.begin + row_bytes;
    rows.push_back(unpacked(row));
  }
  return rows.empty() ? at::empty({0, entry.shape.at(1)}, at::kFloat) : at::stack(rows);
}

at::Tensor WeightStore::get(std::string_view name, at::IntArrayRef shape) const {
  const auto& entry = index_.at(name);
  if (at::IntArrayRef(entry.shape) != shape) {
    fail(entry.file, "tensor \"" + entry.name + "\" has shape " + spec::shape_text(entry.shape) +
                         ", expected " + spec::shape_text(shape));
  }
  return get(name);
}

at::Tensor WeightStore::get(std::string_view name, at::IntArrayRef shape, at::ScalarType dtype,
                            at::Device device, FiniteCheck check) const {
  const at::Tensor stored = get(name, shape);
  const auto what = [&] {
    return index_.at(name).file.string() + ": tensor \"" + std::string(name) + "\" ";
  };
  if (check == FiniteCheck::on) require_finite(stored, what());
  const at::Tensor changed = change_ ? change_(name, stored) : stored;
  at::Tensor converted = changed.to(dtype);
  if (check == FiniteCheck::on && dtype == at::kHalf && changed.scalar_type() != dtype) {
    require_finite(converted, "converted to float16, " + what());
  }
  return converted.to(device);
}

std::optional<PackedMatrix> WeightStore::packed(std::string_view name) const {
  const auto& entry = index_.at(name);
  if (!entry.stays_packed() || entry.bytes() == 0) return std::nullopt;
  const auto& mapping = mapping_of(entry);
  PackedMatrix matrix{.dtype = entry.dtype, .columns = entry.shape.at(1)};
  if (entry.scale_at)
    std::memcpy(&matrix.scale, mapping->data() + *entry.scale_at, sizeof matrix.scale);
  matrix.bytes = at::from_blob(
      mapping->data() + entry.begin,
      {entry.shape.at(0), static_cast<std::int64_t>(entry.bytes()) / entry.shape.at(0)},
      [mapping](void*) {}, at::kByte);
  return matrix;
}

void WeightStore::release(std::string_view name) const {
  const auto& entry = index_.at(name);
  if (entry.bytes() > 0) mapping_of(entry)->release(entry.begin, entry.end);
}

bool WeightStore::maps(const at::Tensor& tensor) const {
  const auto* at = static_cast<const std::byte*>(tensor.const_data_ptr());
  return std::ranges::any_of(mappings_, [at](const auto& entry) {
    const Mapping& mapping = *entry.second;
    return std::less_equal<>()(mapping.data(), at) &&
           std::less<>()(at, mapping.data() + mapping.size());
  });
}

std::map<std::string, at::Tensor> load_safetensors(const std::filesystem::path& path) {
  const WeightStore store(spec::WeightIndex::read_file(path));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& entry : store.index().tensors()) {
    tensors.emplace(entry.name, store.get(entry.name).clone());
  }
  return tensors;
}

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
