#include "models/spec/torch_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/format.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostPickle = 32U << 20U;
constexpr std::uint64_t kMostDirectory = 32U << 20U;
constexpr std::uint64_t kMostRecords = 200'000;  // of a zip file
constexpr std::size_t kMostValues = 2'000'000;
constexpr std::size_t kMostTensors = 65'536;
constexpr std::size_t kMostSides = 16;
constexpr int kMostDepth = 8;  // of dictionaries in dictionaries
constexpr std::size_t kMostShown = 200;
constexpr std::size_t kMostName = 500;      // of a tensor or a storage
constexpr std::size_t kMostArguments = 16;  // of a function

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

[[noreturn]] void refuse_torch(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[load_torch] " + file.string() + ": " + why);
}

/// Returns a name of the file on one line.
std::string shown(std::string name) {
  if (name.size() > kMostShown) name = name.substr(0, kMostShown) + "...";
  std::ranges::replace_if(
      name, [](unsigned char letter) { return letter < ' ' || letter > '~'; }, '?');
  return "\"" + name + "\"";
}

/// A file whose bytes are read where they are asked for, never beyond its end.
class TorchBytes {
 public:
  explicit TorchBytes(const fs::path& file) : file_(file), stream_(file, std::ios::binary) {
    std::error_code error;
    size_ = fs::file_size(file, error);
    if (error || !stream_) refuse_torch(file, "cannot be read");
  }

  std::string read(std::uint64_t begin, std::uint64_t bytes) {
    if (begin > size_ || bytes > size_ - begin)
      refuse_torch(file_, fmt::format("ends at {}, and {} bytes from {} on are needed", size_,
                                      bytes, begin));
    std::string made(bytes, '\0');
    stream_.seekg(static_cast<std::streamoff>(begin));
    stream_.read(made.data(), static_cast<std::streamsize>(bytes));
    if (!stream_) refuse_torch(file_, "cannot be read");
    return made;
  }
  std::uint64_t size() const { return size_; }
  const fs::path& file() const { return file_; }

 private:
  const fs::path& file_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

/// Bytes [begin, end) of the file.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

template <typename Number>
Number number_at(std::string_view bytes, std::size_t at) {
  Number value{};
  if (at > bytes.size() || bytes.size() - at < sizeof value)
    throw std::out_of_range("[load_torch] a number beyond the end");
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// Records of a zip file, by their names. Only what is stored as it is has an extent.
class ZipRecords {
 public:
  explicit ZipRecords(TorchBytes& bytes) : bytes_(bytes) {
    const Extent directory = find_directory();
    const std::string all = bytes.read(directory.begin, directory.end - directory.begin);
    for (std::size_t at = 0; at + kRecordBytes <= all.size();)
      at = read_record(all, at);
  }

  /// Returns the record of that name; nothing where there is none. Throws where it is
  /// compressed.
  std::optional<Extent> find(const std::string& name) {
    const auto found = records_.find(name);
    if (found == records_.end()) return std::nullopt;
    const Record& record = found->second;
    if (record.method != 0)
      refuse_torch(bytes_.file(),
                   "its record " + shown(name) + " is compressed, which is not read");
    constexpr std::uint64_t kLocalBytes = 30;
    const std::string local = bytes_.read(record.header, kLocalBytes);
    if (!local.starts_with("PK\x03\x04")) refuse_torch(bytes_.file(), "has a broken record");
    const std::uint64_t begin = record.header + kLocalBytes + number_at<std::uint16_t>(local, 26) +
                                number_at<std::uint16_t>(local, 28);
    if (begin > bytes_.size() || record.size > bytes_.size() - begin)
      refuse_torch(bytes_.file(), "its record " + shown(name) + " ends beyond the file's end");
    return Extent{begin, begin + record.size};
  }

  /// Returns the folder that all records lie in, "archive/"; "" where no record is a pickle.
  std::string folder() const {
    constexpr std::string_view kPickle = "data.pkl";
    for (const auto& [name, record] : records_) {
      if (name.ends_with(kPickle)) return name.substr(0, name.size() - kPickle.size());
    }
    return "";
  }

 private:
  struct Record {
    std::uint16_t method = 0;
    std::uint64_t size = 0;
    std::uint64_t header = 0;
  };
  static constexpr std::size_t kRecordBytes = 46;

  [[noreturn]] void broken() const {
    refuse_torch(bytes_.file(), "is a zip file with a broken directory");
  }

  /// The directory's place stands at the file's end; of files over 4 GiB in a record before that.
  Extent find_directory() {
    constexpr std::uint64_t kEndBytes = 22, kMostComment = 65'535, kLocatorBytes = 20;
    const std::uint64_t size = bytes_.size();
    const std::uint64_t tail_bytes = std::min(size, kEndBytes + kMostComment);
    const std::string tail = bytes_.read(size - tail_bytes, tail_bytes);
    const auto at = tail.rfind("PK\x05\x06");
    if (at == std::string::npos || tail.size() - at < kEndBytes) broken();
    std::uint64_t bytes = number_at<std::uint32_t>(tail, at + 12);
    std::uint64_t begin = number_at<std::uint32_t>(tail, at + 16);
    const std::uint64_t end = size - tail_bytes + at;
    if (end >= kLocatorBytes) {
      const std::string locator = bytes_.read(end - kLocatorBytes, kLocatorBytes);
      if (locator.starts_with("PK\x06\x07")) {
        const std::string wide = bytes_.read(number_at<std::uint64_t>(locator, 8), 56);
        if (!wide.starts_with("PK\x06\x06")) broken();
        bytes = number_at<std::uint64_t>(wide, 40);
        begin = number_at<std::uint64_t>(wide, 48);
      }
    }
    if (begin > size || bytes > size - begin) broken();
    if (bytes > kMostDirectory)
      refuse_torch(bytes_.file(), fmt::format("has a directory of {} bytes, at most {} are read",
                                              bytes, kMostDirectory));
    return {begin, begin + bytes};
  }

  std::size_t read_record(const std::string& all, std::size_t at) {
    if (std::string_view(all).substr(at, 4) != "PK\x01\x02") broken();
    if (records_.size() >= kMostRecords) refuse_torch(bytes_.file(), "has too many records");
    const std::size_t name_bytes = number_at<std::uint16_t>(all, at + 28);
    const std::size_t extra_bytes = number_at<std::uint16_t>(all, at + 30);
    const std::size_t comment_bytes = number_at<std::uint16_t>(all, at + 32);
    const std::size_t next = at + kRecordBytes + name_bytes + extra_bytes + comment_bytes;
    if (next > all.size()) broken();
    Record record{.method = number_at<std::uint16_t>(all, at + 10),
                  .size = number_at<std::uint32_t>(all, at + 24),
                  .header = number_at<std::uint32_t>(all, at + 42)};
    widen(record, number_at<std::uint32_t>(all, at + 20),
          std::string_view(all).substr(at + kRecordBytes + name_bytes, extra_bytes));
    const std::string name = all.substr(at + kRecordBytes, name_bytes);
    if (!records_.emplace(name, record).second)
      refuse_torch(bytes_.file(), "has the record " + shown(name) + " twice");
    return next;
  }

  /// Takes the numbers of 64 bits that stand in the extra field for those that are all ones.
  void widen(Record& record, std::uint32_t packed, std::string_view extra) const {
    for (std::size_t at = 0; at + 4 <= extra.size();) {
      const auto kind = number_at<std::uint16_t>(extra, at);
      const std::size_t bytes = number_at<std::uint16_t>(extra, at + 2);
      at += 4;
      if (bytes > extra.size() - at) broken();
      if (kind == 1) {
        const std::string_view wide = extra.substr(at, bytes);
        std::size_t place = 0;
        const auto take = [&](std::uint64_t& into) {
          if (place + 8 > wide.size()) broken();
          into = number_at<std::uint64_t>(wide, place);
          place += 8;
        };
        if (record.size == UINT32_MAX) take(record.size);
        if (packed == UINT32_MAX) place += 8;
        if (record.header == UINT32_MAX) take(record.header);
      }
      at += bytes;
    }
  }

  TorchBytes& bytes_;
  std::map<std::string, Record, std::less<>> records_;
};

/// Number of a value in the order in which they are made.
using Ref = std::uint32_t;

struct None {};
struct Mark {};
struct Class {
  std::string name;  // "torch._utils._rebuild_tensor_v2"
};
struct Storage {
  std::string key;
  std::optional<Dtype> dtype;  // none: bytes, and the tensor says
  std::uint64_t elements = 0;
};
struct Tensor {
  Ref storage = 0;
  Dtype dtype = Dtype::float32;
  std::uint64_t offset = 0;
  std::vector<std::int64_t> shape, strides;
};
struct List {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
};
/// Value of a pickle of tensors; a text also where pickle has bytes.
using Value =
    std::variant<None, Mark, std::int64_t, double, std::string, Class, Storage, Tensor, List, Dict>;

std::optional<Dtype> dtype_of_class(const std::string& name) {
  static const std::map<std::string, Dtype> kClasses = {
      {"torch.FloatStorage", Dtype::float32},      {"torch.float32", Dtype::float32},
      {"torch.BFloat16Storage", Dtype::bfloat16},  {"torch.bfloat16", Dtype::bfloat16},
      {"torch.HalfStorage", Dtype::float16},       {"torch.float16", Dtype::float16},
      {"torch.DoubleStorage", Dtype::float64},     {"torch.float64", Dtype::float64},
      {"torch.LongStorage", Dtype::int64},         {"torch.int64", Dtype::int64},
      {"torch.IntStorage", Dtype::int32},          {"torch.int32", Dtype::int32},
      {"torch.CharStorage", Dtype::int8},          {"torch.int8", Dtype::int8},
      {"torch.ByteStorage", Dtype::uint8},         {"torch.uint8", Dtype::uint8},
      {"torch.BoolStorage", Dtype::boolean},       {"torch.bool", Dtype::boolean},
      {"torch.float8_e4m3fn", Dtype::float8_e4m3}, {"torch.float8_e5m2", Dtype::float8_e5m2}};
  const auto found = kClasses.find(name);
  return found == kClasses.end() ? std::nullopt : std::optional(found->second);
}

constexpr std::string_view kUntyped = "torch.storage.UntypedStorage";
constexpr std::string_view kOrderedDict = "collections.OrderedDict";
constexpr std::string_view kSize = "torch.Size";
constexpr std::string_view kRebuild = "torch._utils._rebuild_tensor";
constexpr std::string_view kRebuild2 = "torch._utils._rebuild_tensor_v2";
constexpr std::string_view kRebuild3 = "torch._utils._rebuild_tensor_v3";
constexpr std::string_view kParameter = "torch._utils._rebuild_parameter";

bool is_known_class(const std::string& name) {
  for (const std::string_view known :
       {kUntyped, kOrderedDict, kSize, kRebuild, kRebuild2, kRebuild3, kParameter}) {
    if (name == known) return true;
  }
  return dtype_of_class(name).has_value();
}

/// Reads pickles that lie one behind the other. Classes and functions are names, and what is done
/// with them is what tensors need; nothing else is known.
class Pickle {
 public:
  Pickle(const fs::path& file, std::string bytes) : file_(file), bytes_(std::move(bytes)) {}

  /// Returns the next pickle's value.
  Ref load() {
    stack_.clear();
    memo_.clear();
    while (step()) {
    }
    return pop();
  }
  const Value& value(Ref ref) const { return values_.at(ref); }
  template <typename Kind>
  const Kind* as(Ref ref) const {
    return std::get_if<Kind>(&values_.at(ref));
  }
  template <typename Use>
  void each_storage(Use use) const {
    for (const Value& value : values_) {
      if (const auto* storage = std::get_if<Storage>(&value)) use(*storage);
    }
  }
  /// Returns the number of bytes that have been read.
  std::size_t position() const { return at_; }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_torch(file_, why + fmt::format(", at byte {} of its pickle", at_));
  }

  std::string_view take(std::uint64_t bytes) {
    if (bytes > bytes_.size() - at_) refuse("ends within a value");
    const auto taken = std::string_view(bytes_).substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  template <typename Number>
  Number number() {
    return number_at<Number>(take(sizeof(Number)), 0);
  }
  std::string line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string::npos) refuse("ends within a name");
    std::string made(take(end - at_));
    take(1);
    return made;
  }

  void push(Value value) {
    if (values_.size() >= kMostValues) refuse(fmt::format("has more than {} values", kMostValues));
    values_.push_back(std::move(value));
    stack_.push_back(static_cast<Ref>(values_.size() - 1));
  }
  Ref pop() {
    if (stack_.empty()) refuse("takes a value where there is none");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  /// Returns the values behind the last mark, without it.
  std::vector<Ref> behind_mark() {
    std::vector<Ref> items;
    for (Ref top = pop(); !std::holds_alternative<Mark>(values_[top]); top = pop())
      items.push_back(top);
    std::ranges::reverse(items);
    return items;
  }
  template <typename Kind>
  Kind& top(const char* what) {
    if (stack_.empty()) refuse("takes a value where there is none");
    auto* found = std::get_if<Kind>(&values_[stack_.back()]);
    if (found == nullptr) refuse(std::string("changes what is no ") + what);
    return *found;
  }

  void tuple(std::size_t count) {
    List made;
    made.items.resize(count);
    for (std::size_t i = count; i-- > 0;)
      made.items[i] = pop();
    push(std::move(made));
  }
  void add_items(const std::vector<Ref>& items) {
    Dict& dict = top<Dict>("dictionary");
    if (items.size() % 2 != 0) refuse("has a key without a value");
    for (std::size_t i = 0; i < items.size(); i += 2)
      dict.items.emplace_back(items[i], items[i + 1]);
  }
  void memoize(std::uint64_t index) {
    if (stack_.empty()) refuse("takes a value where there is none");
    if (memo_.size() >= kMostValues) refuse(fmt::format("keeps more than {} values", kMostValues));
    memo_[index] = stack_.back();
  }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("recalls what was not kept");
    stack_.push_back(found->second);
  }
  void long_number(std::size_t bytes) {
    if (bytes > 8) {
      // The magic number of the form before zip is longer than any other.
      take(bytes);
      return push(std::int64_t{0});
    }
    const auto digits = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = bytes; i-- > 0;)
      value = value << 8U | static_cast<unsigned char>(digits[i]);
    if (bytes > 0 && bytes < 8 && (digits.back() & 0x80) != 0)
      value |= ~std::uint64_t{0} << 8 * bytes;
    push(static_cast<std::int64_t>(value));
  }
  void name(std::string module, const std::string& own) {
    // Before storages had a module of their own, and in Python 2.
    if (module == "__builtin__") module = "builtins";
    std::string whole = module + "." + own;
    if (!is_known_class(whole))
      refuse(
          "calls for " + shown(whole) +
          ", and only tensors are read: in Python, torch.load it where you trust its source, and "
          "safetensors.torch.save_file its tensors");
    push(Class{std::move(whole)});
  }

  bool step();
  void reduce();
  void persistent();
  void build();
  std::int64_t integer(Ref ref) const {
    const auto* found = as<std::int64_t>(ref);
    if (found == nullptr) refuse("has another value where a number is needed");
    return *found;
  }
  std::vector<std::int64_t> integers(Ref ref) const {
    const auto* list = as<List>(ref);
    if (list == nullptr || list->items.size() > kMostSides) refuse("has a tensor without a shape");
    std::vector<std::int64_t> made;
    for (const Ref item : list->items)
      made.push_back(integer(item));
    return made;
  }
  Tensor tensor(const std::string& by, const std::vector<Ref>& arguments) const;

  const fs::path& file_;
  std::string bytes_;
  std::size_t at_ = 0;
  std::vector<Value> values_;
  std::vector<Ref> stack_;
  std::map<std::uint64_t, Ref> memo_;
};

/// Does one operation; false where it was the last one.
bool Pickle::step() {
  const auto code = number<std::uint8_t>();
  switch (code) {
    case 0x80:  // PROTO
      if (const auto protocol = number<std::uint8_t>(); protocol < 2 || protocol > 5)
        refuse(fmt::format("is of pickle's protocol {}", protocol));
      break;
    case 0x95:  // FRAME
      take(8);
      break;
    case '.':  // STOP
      return false;
    case '(':
      push(Mark{});
      break;
    case '0':  // POP
      pop();
      break;
    case 'N':
      push(None{});
      break;
    case 0x88:  // NEWTRUE
    case 0x89:  // NEWFALSE
      push(std::int64_t{code == 0x88});
      break;
    case 'J':
      push(std::int64_t{number<std::int32_t>()});
      break;
    case 'K':
      push(std::int64_t{number<std::uint8_t>()});
      break;
    case 'M':
      push(std::int64_t{number<std::uint16_t>()});
      break;
    case 0x8a:  // LONG1
      long_number(number<std::uint8_t>());
      break;
    case 'G':  // BINFLOAT, the only number that lies the other way round
      push(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>())));
      break;
    case 'X':    // BINUNICODE
    case 'T':    // BINSTRING
    case 'B': {  // BINBYTES
      const auto bytes = number<std::uint32_t>();
      push(std::string(take(bytes)));
      break;
    }
    case 0x8c:   // SHORT_BINUNICODE
    case 'U':    // SHORT_BINSTRING
    case 'C': {  // SHORT_BINBYTES
      const auto bytes = number<std::uint8_t>();
      push(std::string(take(bytes)));
      break;
    }
    case '}':
      push(Dict{});
      break;
    case ']':
    case ')':
      push(List{});
      break;
    case 't':
      push(List{behind_mark()});
      break;
    case 0x85:
    case 0x86:
    case 0x87:  // TUPLE1 to TUPLE3
      tuple(code - 0x84U);
      break;
    case 'a': {
      const Ref item = pop();
      top<List>("list").items.push_back(item);
      break;
    }
    case 'e': {
      const auto items = behind_mark();
      auto& list = top<List>("list").items;
      list.insert(list.end(), items.begin(), items.end());
      break;
    }
    case 's': {
      const Ref item = pop(), key = pop();
      add_items({key, item});
      break;
    }
    case 'u':
      add_items(behind_mark());
      break;
    case 'q':
      memoize(number<std::uint8_t>());
      break;
    case 'r':
      memoize(number<std::uint32_t>());
      break;
    case 0x94:  // MEMOIZE
      memoize(memo_.size());
      break;
    case 'h':
      recall(number<std::uint8_t>());
      break;
    case 'j':
      recall(number<std::uint32_t>());
      break;
    case 'c': {
      std::string module = line();
      name(std::move(module), line());
      break;
    }
    case 0x93: {  // STACK_GLOBAL
      const Ref own = pop(), module = pop();
      if (as<std::string>(own) == nullptr || as<std::string>(module) == nullptr)
        refuse("has a name that is no text");
      name(*as<std::string>(module), *as<std::string>(own));
      break;
    }
    case 'Q':
      persistent();
      break;
    case 'R':
      reduce();
      break;
    case 'b':
      build();
      break;
    default:
      refuse(fmt::format("has the operation {}, which tensors do not need",
                         code > ' ' && code <= '~'
                             ? std::string{'\'', static_cast<char>(code), '\''}
                             : fmt::format("{:#04x}", code)));
  }
  return true;
}

/// Makes a storage of ("storage", its class, key, device, number of elements).
void Pickle::persistent() {
  const Ref of = pop();
  const auto* all = as<List>(of);
  if (all == nullptr || all->items.size() < 5) refuse("has a storage of another form");
  const auto* type = as<Class>(all->items[1]);
  const auto* key = as<std::string>(all->items[2]);
  const std::int64_t elements = integer(all->items[4]);
  const auto dtype = type == nullptr ? std::nullopt : dtype_of_class(type->name);
  if (type == nullptr || key == nullptr || elements < 0 || (!dtype && type->name != kUntyped))
    refuse("has a storage of another form");
  // A text that is kept once may be the key of many storages.
  if (key->size() > kMostName)
    refuse(
        fmt::format("names a storage by {} bytes, at most {} are taken", key->size(), kMostName));
  // A view into another storage, which nobody makes any more, has its place as a sixth.
  if (all->items.size() > 5 && !std::holds_alternative<None>(value(all->items[5])))
    refuse("has a storage within another");
  push(Storage{*key, dtype, static_cast<std::uint64_t>(elements)});
}

void Pickle::reduce() {
  const Ref arguments = pop(), function = pop();
  const auto* by = as<Class>(function);
  const auto* list = as<List>(arguments);
  if (by == nullptr || list == nullptr) refuse("calls what is no function");
  if (list->items.size() > kMostArguments)
    refuse(fmt::format("calls {} with {} values", shown(by->name), list->items.size()));
  const std::vector<Ref> items = list->items;
  if (by->name == kOrderedDict && items.empty()) return push(Dict{});
  if (const auto* sides = items.size() == 1 ? as<List>(items[0]) : nullptr;
      by->name == kSize && sides != nullptr && sides->items.size() <= kMostSides)
    return push(List{sides->items});
  if (by->name == kParameter && !items.empty() && as<Tensor>(items[0]))
    return stack_.push_back(items[0]);
  if (by->name == kRebuild || by->name == kRebuild2 || by->name == kRebuild3)
    return push(tensor(by->name, items));
  refuse("calls " + shown(by->name) + " with something else than it takes");
}

Tensor Pickle::tensor(const std::string& by, const std::vector<Ref>& arguments) const {
  const auto* storage = arguments.size() < 4 ? nullptr : as<Storage>(arguments[0]);
  if (storage == nullptr) refuse("has a tensor without a storage");
  Tensor made{
      .storage = arguments[0], .shape = integers(arguments[2]), .strides = integers(arguments[3])};
  const std::int64_t offset = integer(arguments[1]);
  if (offset < 0 || made.shape.size() != made.strides.size())
    refuse("has a tensor of another form");
  made.offset = static_cast<std::uint64_t>(offset);
  auto dtype = storage->dtype;
  if (by == kRebuild3) {
    const auto* type = arguments.size() < 7 ? nullptr : as<Class>(arguments[6]);
    dtype = type == nullptr ? std::nullopt : dtype_of_class(type->name);
  }
  if (!dtype) refuse("has a tensor of a type that is not read");
  made.dtype = *dtype;
  return made;
}

/// Attributes of a dictionary say nothing about tensors.
void Pickle::build() {
  pop();
  top<Dict>("dictionary");
}

/// Finds a storage's bytes.
using FindStorage = std::function<std::optional<Extent>(const Storage&)>;

/// Makes entries of the tensors among a pickle's values.
class TorchTensors {
 public:
  TorchTensors(const fs::path& file, const Pickle& pickle, FindStorage find)
      : file_(file), pickle_(pickle), find_(std::move(find)) {}

  std::vector<TensorEntry> read(Ref root) {
    const auto* all = pickle_.as<Dict>(root);
    if (all == nullptr) refuse_torch(file_, "holds no dictionary of tensors");
    for (const auto& [key, item] : all->items) {
      const auto* name = pickle_.as<std::string>(key);
      if (name == nullptr || *name != "state_dict" || pickle_.as<Dict>(item) == nullptr) continue;
      add(item, "", 0);
      return std::move(entries_);
    }
    add(root, "", 0);
    return std::move(entries_);
  }

 private:
  void add(Ref of, const std::string& prefix, int depth) {
    if (depth > kMostDepth) refuse_torch(file_, "has dictionaries too deep in one another");
    for (const auto& [key, item] : pickle_.as<Dict>(of)->items) {
      // A dictionary may be in many others, and each of these in many more.
      if (++seen_ > kMostValues)
        refuse_torch(file_,
                     fmt::format("has more than {} values in its dictionaries", kMostValues));
      const auto* own = pickle_.as<std::string>(key);
      if (own == nullptr) continue;
      if (prefix.size() + own->size() > kMostName)
        refuse_torch(file_, fmt::format("has a name of {} bytes, at most {} are taken",
                                        prefix.size() + own->size(), kMostName));
      if (pickle_.as<Dict>(item) != nullptr)
        add(item, prefix + *own + ".", depth + 1);
      else if (const auto* tensor = pickle_.as<Tensor>(item))
        add(*tensor, prefix + *own);
    }
  }

  void add(const Tensor& tensor, const std::string& name) {
    if (entries_.size() >= kMostTensors)
      refuse_torch(file_,
                   fmt::format("has more than {} tensors, the most that a component may have",
                               kMostTensors));
    const auto& storage = *pickle_.as<Storage>(tensor.storage);
    TensorEntry entry{.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .file = file_};
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape) {
      if (size < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements))
        refuse_tensor(name, "has a shape too large to count");
    }
    entry.stored_as = way_of(tensor, name);
    const auto extent = find_(storage);
    if (!extent)
      refuse_tensor(name, "lies in the storage " + shown(storage.key) + ", which is missing");
    const std::uint64_t size = dtype_bytes(tensor.dtype);
    const std::uint64_t room = (extent->end - extent->begin) / size;
    if (tensor.offset > room || elements > room - tensor.offset)
      refuse_tensor(name, fmt::format("ends beyond the {} bytes of its storage",
                                      extent->end - extent->begin));
    entry.begin = extent->begin + tensor.offset * size;
    entry.end = entry.begin + elements * size;
    entries_.push_back(std::move(entry));
  }

  StoredAs way_of(const Tensor& tensor, const std::string& name) const {
    const auto& shape = tensor.shape;
    std::int64_t stride = 1;
    bool rows = true;
    for (std::size_t i = shape.size(); i-- > 0;) {
      if (shape[i] == 0) return StoredAs::as_is;
      rows = rows && (shape[i] == 1 || tensor.strides[i] == stride);
      if (__builtin_mul_overflow(stride, shape[i], &stride)) return StoredAs::as_is;
    }
    if (rows) return StoredAs::as_is;
    if (shape.size() == 2 && tensor.strides[0] == 1 && tensor.strides[1] == shape[0])
      return StoredAs::transposed;
    refuse_tensor(name, fmt::format("of shape {} lies with the strides {}, which are not read",
                                    shape_text(shape), shape_text(tensor.strides)));
  }

  [[noreturn]] void refuse_tensor(const std::string& name, const std::string& why) const {
    refuse_torch(file_, "tensor " + shown(name) + " " + why);
  }

  const fs::path& file_;
  const Pickle& pickle_;
  FindStorage find_;
  std::size_t seen_ = 0;
  std::vector<TensorEntry> entries_;
};

std::vector<TensorEntry> read_zip(TorchBytes& bytes) {
  ZipRecords records(bytes);
  const std::string folder = records.folder();
  const auto extent = records.find(folder + "data.pkl");
  if (!extent) refuse_torch(bytes.file(), "is a zip file without torch.save's data.pkl");
  if (extent->end - extent->begin > kMostPickle)
    refuse_torch(bytes.file(), fmt::format("has a pickle of {} bytes, at most {} are read",
                                           extent->end - extent->begin, kMostPickle));
  if (const auto order = records.find(folder + "byteorder");
      order && order->end - order->begin < kMostShown) {
    if (bytes.read(order->begin, order->end - order->begin) != "little")
      refuse_torch(bytes.file(), "was written on a machine of another byte order");
  }
  Pickle pickle(bytes.file(), bytes.read(extent->begin, extent->end - extent->begin));
  const Ref root = pickle.load();
  return TorchTensors(
             bytes.file(), pickle,
             [&](const Storage& storage) { return records.find(folder + "data/" + storage.key); })
      .read(root);
}

/// The form before zip: a magic number, a version, facts of the machine, the tensors and a list of
/// storages, each a pickle; then the storages in the order of the list, each with its length.
std::vector<TensorEntry> read_before_zip(TorchBytes& bytes) {
  const fs::path& file = bytes.file();
  Pickle pickle(file, bytes.read(0, std::min(bytes.size(), kMostPickle)));
  for (int i = 0; i < 3; ++i)
    pickle.load();
  const Ref root = pickle.load();
  const Ref keys = pickle.load();
  const auto* order = pickle.as<List>(keys);
  if (order == nullptr) refuse_torch(file, "has no list of storages");
  std::map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < order->items.size(); ++i) {
    const auto* key = pickle.as<std::string>(order->items[i]);
    if (key == nullptr || !numbers.emplace(*key, i).second)
      refuse_torch(file, "has a list of storages of another form");
  }
  // The length of a storage is a number of elements, of which the tensors' pickle knows the size.
  std::vector<std::uint64_t> sizes(order->items.size(), 0);
  pickle.each_storage([&](const Storage& storage) {
    const auto found = numbers.find(storage.key);
    if (found != numbers.end())
      sizes[found->second] = dtype_bytes(storage.dtype.value_or(Dtype::uint8));
  });
  std::vector<Extent> extents;
  std::uint64_t at = pickle.position();
  for (const std::uint64_t size : sizes) {
    const auto elements = number_at<std::uint64_t>(bytes.read(at, 8), 0);
    at += 8;
    std::uint64_t length = 0;
    if (size == 0 || __builtin_mul_overflow(elements, size, &length) || length > bytes.size() - at)
      refuse_torch(file, "has a storage that ends beyond its end");
    extents.push_back({at, at + length});
    at += length;
  }
  return TorchTensors(file, pickle,
                      [&](const Storage& storage) -> std::optional<Extent> {
                        const auto found = numbers.find(storage.key);
                        return found == numbers.end() ? std::nullopt
                                                      : std::optional(extents[found->second]);
                      })
      .read(root);
}

enum class TorchForm { none, zip, before_zip };

TorchForm form_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::array<char, 14> begin{};
  stream.read(begin.data(), begin.size());
  const std::string_view text(begin.data(), static_cast<std::size_t>(stream.gcount()));
  if (text.starts_with("PK\x03\x04")) return TorchForm::zip;
  // Protocol 2 and a number of ten bytes.
  if (text.starts_with("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"))
    return TorchForm::before_zip;
  return TorchForm::none;
}

}  // namespace

bool is_torch_name(const fs::path& file) {
  std::string kind = file.extension().string();
  std::ranges::transform(kind, kind.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return !file.filename().native().starts_with('.') &&
         (kind == ".bin" || kind == ".ckpt" || kind == ".pt" || kind == ".pth");
}

bool is_torch_file(const fs::path& file) {
  return form_of(file) != TorchForm::none;
}

std::vector<TensorEntry> read_torch_file(const fs::path& file) {
  const TorchForm form = form_of(file);
  if (form == TorchForm::none) {
    std::string begin(kMostShown, '\0');
    std::ifstream stream(file, std::ios::binary);
    stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    begin.resize(static_cast<std::size_t>(stream.gcount()));
    const auto pointer = lfs_pointer_text(begin);
    refuse_torch(file, pointer.empty() ? "is no file of torch.save" : pointer);
  }
  try {
    TorchBytes bytes(file);
    return form == TorchForm::zip ? read_zip(bytes) : read_before_zip(bytes);
  } catch (const std::out_of_range&) {
    refuse_torch(file, "ends within a number");
  }
}

}  // namespace troupe::spec
