#include "models/spec/json_text.h"

#include <cctype>
#include <fstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/format.h"

namespace troupe::spec {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxShownKey = 200;

bool is_word_character(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

bool has_bare_word(std::string_view text, std::size_t at, std::string_view word) {
  if (text.substr(at, word.size()) != word) return false;
  const std::size_t end = at + word.size();
  return end == text.size() || !is_word_character(text[end]);
}

std::string shown_key(const std::string& key) {
  return key.size() <= kMaxShownKey ? "\"" + key + "\""
                                    : "\"" + key.substr(0, kMaxShownKey) + "…\"";
}

/// "line 3, column 5: unexpected end of input" of the library's "[json.exception.parse_error.101]
/// parse error at line 3, column 5: syntax error while parsing value - unexpected end of input".
std::string own_words(std::string what) {
  if (const auto at = what.find("] "); what.starts_with('[') && at != what.npos)
    what.erase(0, at + 2);
  for (const std::string_view start : {"parse error at ", "parse error: "})
    if (what.starts_with(start)) what.erase(0, start.size());
  if (what.find("attempting to parse an empty input") != what.npos) return "it is empty";
  const auto from = what.find("syntax error while parsing ");
  const auto to = what.find(" - ", from);
  if (from != what.npos && to != what.npos) what.erase(from, to + 3 - from);
  return what;
}

/// Makes the document of what the parser finds. The library's own callback looks at all members of
/// an object again whenever one of them ends, so its time grows with their square.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  using Json = nlohmann::json;

  Builder(const std::filesystem::path& file, std::size_t max_values)
      : file_(file), max_values_(max_values) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw std::runtime_error("[parse_json] " + file_.string() + ": " + why);
  }
  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return add(value) != nullptr;
  }
  bool string(string_t& value) override { return add(std::move(value)) != nullptr; }
  bool binary(binary_t& value) override { return add(std::move(value)) != nullptr; }
  bool start_object(std::size_t /*members*/) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t /*members*/) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().emplace(key, nullptr);
    if (!is_new) fail("key " + shown_key(key) + " occurs twice");
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    fail("is not JSON: " + own_words(error.what()));
  }

 private:
  Json* add(Json value) {
    if (++values_ > max_values_)
      fail(fmt::format("has more than {} values, the most that are read", max_values_));
    Json* place = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      place = &open_.back()->get_ref<Json::array_t&>().emplace_back();
    } else if (!open_.empty()) {
      place = member_;
    }
    *place = std::move(value);
    return place;
  }
  bool open(Json empty) {
    open_.push_back(add(std::move(empty)));
    if (open_.size() > kMaxDepth) fail(fmt::format("is nested deeper than {} levels", kMaxDepth));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::filesystem::path& file_;
  std::size_t max_values_;
  std::size_t values_ = 0;
  Json root_;
  std::vector<Json*> open_;  // what has begun and not ended, the innermost last
  Json* member_ = nullptr;   // of the innermost object: whose value comes next
};

/// Returns what a path of such a type is; null where it is a file or a folder, or nothing.
const char* neither_file_nor_folder(std::filesystem::file_type type) {
  using enum std::filesystem::file_type;
  if (type == fifo) return "a named pipe";
  if (type == socket) return "a socket";
  return type == character || type == block ? "a device" : nullptr;
}

std::filesystem::file_type type_of(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("[read_model] " + path.string() + ": " + why);
  };
  const auto type = fs::status(path, error).type();
  if (type == fs::file_type::none) fail("cannot be read: " + error.message());
  if (type == fs::file_type::not_found && fs::is_symlink(path, error))
    fail("is a link to " + fs::read_symlink(path, error).string() +
         ", which is not there (`cp -rL` copies what links lead to)");
  if (const auto* odd = neither_file_nor_folder(type))
    fail(std::string("is ") + odd + ", not a file or a folder");
  return type;
}

}  // namespace

bool is_file(const std::filesystem::path& path) {
  return type_of(path) == std::filesystem::file_type::regular;
}

bool is_folder(const std::filesystem::path& path) {
  return type_of(path) == std::filesystem::file_type::directory;
}

std::string read_text_file(const std::filesystem::path& file, std::uint64_t max_bytes) {
  std::error_code error;
  if (!is_file(file))
    throw std::runtime_error("[read_text_file] " + file.string() + ": " +
                             (is_folder(file) ? "is a folder" : "no such file"));
  const std::uint64_t size = std::filesystem::file_size(file, error);
  if (error || size > max_bytes) {
    throw std::runtime_error(
        "[read_text_file] " + file.string() + ": " +
        (error ? error.message()
               : fmt::format("has {} bytes, at most {} are read", size, max_bytes)));
  }
  std::ifstream stream(file, std::ios::binary);
  std::string text(size, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  if (!stream) throw std::runtime_error("[read_text_file] " + file.string() + ": cannot be read");
  if (const auto pointer = lfs_pointer_text(text); !pointer.empty())
    throw std::runtime_error("[read_text_file] " + file.string() + ": " + pointer);
  return text;
}

std::string lfs_pointer_text(std::string_view begin) {
  if (!begin.starts_with("version https://git-lfs.github.com/spec/")) return "";
  return "is a Git LFS pointer, not the file itself: `git lfs pull` where it was cloned fetches "
         "it, "
         "or download it again";
}

std::string standard_json(std::string_view text) {
  static constexpr std::string_view kWords[] = {"-Infinity", "Infinity", "NaN"};
  std::string result;
  result.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\' && i + 1 < text.size()) result += text[i++];
      if (c == '"') in_string = false;
      result += text[i++];
      continue;
    }
    if (c == '"') in_string = true;
    std::string_view found;
    if ((c == '-' || c == 'I' || c == 'N') && (i == 0 || !is_word_character(text[i - 1]))) {
      for (std::string_view word : kWords) {
        if (has_bare_word(text, i, word)) found = word;
      }
    }
    if (found.empty()) {
      result += text[i++];
    } else {
      result.append("\"").append(found).append("\"");
      i += found.size();
    }
  }
  return result;
}

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file,
                          std::size_t max_values) {
  Builder builder(file, max_values);
  try {
    nlohmann::json::sax_parse(standard_json(text), &builder);
  } catch (const nlohmann::json::exception& error) {
    builder.fail("is not JSON: " + own_words(error.what()));
  }
  return builder.take();
}

}  // namespace troupe::spec
