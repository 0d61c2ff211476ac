#include "models/spec/config.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

constexpr std::uint64_t kMaxConfigBytes = 16U << 20U;
constexpr std::size_t kMaxShownValue = 80;

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxShownValue) text = text.substr(0, kMaxShownValue) + "...";
  return text;
}

std::optional<double> as_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) {
    const auto& word = value.get_ref<const std::string&>();
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  return std::nullopt;
}

bool fits_int64(const nlohmann::json& value) {
  return value.is_number_integer() &&
         (!value.is_number_unsigned() ||
          value.get<std::uint64_t>() <=
              static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()));
}

}  // namespace

ConfigReader::ConfigReader(std::string_view text, std::filesystem::path file)
    : file_(std::move(file)),
      values_(std::make_shared<const nlohmann::json>(parse_json(text, file_))) {
  if (!values_->is_object()) {
    throw std::runtime_error("[read_config] " + file_.string() + ": is not a JSON object");
  }
}

ConfigReader ConfigReader::read(const std::filesystem::path& file) {
  return ConfigReader(read_text_file(file, kMaxConfigBytes), file);
}

std::string ConfigReader::all() const {
  return values_->dump();
}

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto it = values_->find(key);
  if (it == values_->end()) return nullptr;
  read_.emplace(key);
  return &*it;
}

const nlohmann::json& ConfigReader::need(std::string_view key) const {
  if (const auto* value = find(key)) return *value;
  throw std::runtime_error("[read_config] " + file_.string() + ": key \"" + std::string(key) +
                           "\" is missing");
}

bool ConfigReader::has(std::string_view key) const {
  return values_->contains(key);
}

bool ConfigReader::has_value(std::string_view key) const {
  const auto it = values_->find(key);
  return it != values_->end() && !it->is_null();
}

const nlohmann::json& ConfigReader::raw(std::string_view key) const {
  return need(key);
}

std::int64_t ConfigReader::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const auto& value = need(key);
  if (!fits_int64(value) || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max) {
    refuse(key, fmt::format("must be an integer from {} to {}", min, max));
  }
  return value.get<std::int64_t>();
}

std::int64_t ConfigReader::integer_or(std::string_view key, std::int64_t fallback, std::int64_t min,
                                      std::int64_t max) const {
  return has(key) ? integer(key, min, max) : fallback;
}

std::optional<std::int64_t> ConfigReader::optional_integer(std::string_view key, std::int64_t min,
                                                           std::int64_t max) const {
  const auto* value = find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return integer(key, min, max);
}

double ConfigReader::number(std::string_view key) const {
  const auto value = as_number(need(key));
  if (!value) refuse(key, "must be a number");
  return *value;
}

double ConfigReader::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

std::optional<double> ConfigReader::optional_number(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return number(key);
}

bool ConfigReader::boolean(std::string_view key) const {
  const auto& value = need(key);
  if (!value.is_boolean()) refuse(key, "must be true or false");
  return value.get<bool>();
}

bool ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

std::optional<bool> ConfigReader::optional_boolean(std::string_view key) const {
  const auto* value = find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return boolean(key);
}

std::string ConfigReader::text(std::string_view key) const {
  const auto& value = need(key);
  if (!value.is_string()) refuse(key, "must be a string");
  return value.get<std::string>();
}

std::string ConfigReader::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

std::vector<std::int64_t> ConfigReader::integers(std::string_view key) const {
  const auto& value = need(key);
  if (!value.is_array() || !std::ranges::all_of(value, fits_int64)) {
    refuse(key, "must be a list of integers");
  }
  return value.get<std::vector<std::int64_t>>();
}

std::vector<double> ConfigReader::numbers(std::string_view key) const {
  const auto& value = need(key);
  std::vector<double> result;
  if (!value.is_array()) refuse(key, "must be a list of numbers");
  for (const auto& item : value) {
    const auto read = as_number(item);
    if (!read) refuse(key, "must be a list of numbers");
    result.push_back(*read);
  }
  return result;
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  const auto& value = need(key);
  const auto is_text = [](const nlohmann::json& item) { return item.is_string(); };
  if (!value.is_array() || !std::ranges::all_of(value, is_text)) {
    refuse(key, "must be a list of strings");
  }
  return value.get<std::vector<std::string>>();
}

std::string ConfigReader::choice_or(std::string_view key, std::string_view fallback,
                                    std::initializer_list<std::string_view> allowed) const {
  std::string value = text_or(key, fallback);
  if (std::ranges::find(allowed, value) != allowed.end()) return value;
  std::string list;
  for (std::string_view name : allowed)
    list.append(list.empty() ? "" : ", ").append(name);
  refuse(key, "is not supported (supported: " + list + ")");
}

void ConfigReader::only(std::string_view key, const nlohmann::json& value) const {
  const auto* found = find(key);
  if (found != nullptr && *found != value) {
    refuse(key, "is not supported (only " + shown(value) + ")");
  }
}

void ConfigReader::harmless(std::initializer_list<std::string_view> keys) const {
  for (std::string_view key : keys)
    read_.emplace(key);
}

void ConfigReader::finish() const {
  std::string unknown;
  for (const auto& [key, value] : values_->items()) {
    if (key.starts_with('_') || read_.contains(key)) continue;
    unknown += (unknown.empty() ? "\"" : ", \"") + key + "\" = " + shown(value);
  }
  if (!unknown.empty()) {
    throw std::runtime_error("[read_config] " + file_.string() + ": not supported: key " + unknown);
  }
}

void ConfigReader::refuse(std::string_view key, const std::string& why) const {
  const auto it = values_->find(key);
  throw std::runtime_error("[read_config] " + file_.string() + ": key \"" + std::string(key) +
                           "\" = " + (it == values_->end() ? "(missing)" : shown(*it)) + " " + why);
}

}  // namespace troupe::spec
