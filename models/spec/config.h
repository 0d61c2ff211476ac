#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::spec {

// What a config may say at most: more than any published model has, and little enough that products
// of sizes stay exact.

inline constexpr std::int64_t kMaxWidth = 1 << 16;
inline constexpr std::int64_t kMaxBlocks = 1024;
/// Levels of a U-Net or an autoencoder.
inline constexpr std::size_t kMaxLevels = 8;

/// Features that diffusers' timestep embeddings begin with, in every family.
inline constexpr std::int64_t kTimeFrequencies = 256;

/// One JSON object of settings that remembers which keys were read, so that none is ignored.
/// Getters throw std::runtime_error naming file, key, value and what is allowed. Read what is
/// supported, list what changes nothing with `harmless`, then call `finish`, which refuses the
/// rest. Keys that begin with an underscore are metadata and always harmless.
class ConfigReader {
 public:
  /// Parses `text`; `file` is used in errors only.
  ConfigReader(std::string_view text, std::filesystem::path file);
  /// Reads a file of at most 16 MiB.
  static ConfigReader read(const std::filesystem::path& file);

  bool has(std::string_view key) const;
  /// Present, and not null.
  bool has_value(std::string_view key) const;
  const std::filesystem::path& file() const { return file_; }
  /// All of it, as JSON.
  std::string all() const;
  /// The parsed value; throws if it is missing. Counts as read.
  const nlohmann::json& raw(std::string_view key) const;

  std::int64_t integer(std::string_view key, std::int64_t min = 1,
                       std::int64_t max = std::numeric_limits<std::int32_t>::max()) const;
  /// Returns `fallback` if the key is missing.
  std::int64_t integer_or(std::string_view key, std::int64_t fallback, std::int64_t min = 1,
                          std::int64_t max = std::numeric_limits<std::int32_t>::max()) const;
  /// Returns nothing if the key is missing or null.
  std::optional<std::int64_t> optional_integer(
      std::string_view key, std::int64_t min = 1,
      std::int64_t max = std::numeric_limits<std::int32_t>::max()) const;

  /// Integers and fractions; also the infinities and NaN as Python spells them.
  double number(std::string_view key) const;
  double number_or(std::string_view key, double fallback) const;
  std::optional<double> optional_number(std::string_view key) const;

  bool boolean(std::string_view key) const;
  bool boolean_or(std::string_view key, bool fallback) const;
  std::optional<bool> optional_boolean(std::string_view key) const;

  std::string text(std::string_view key) const;
  std::string text_or(std::string_view key, std::string_view fallback) const;

  std::vector<std::int64_t> integers(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;
  std::vector<std::string> texts(std::string_view key) const;

  /// Returns one of `allowed`, or throws an error that lists them. Returns `fallback` if the key is
  /// missing.
  std::string choice_or(std::string_view key, std::string_view fallback,
                        std::initializer_list<std::string_view> allowed) const;

  /// The key may be missing or have exactly this value; anything else is refused by key and value.
  void only(std::string_view key, const nlohmann::json& value) const;
  /// Keys that change nothing in what is computed here.
  void harmless(std::initializer_list<std::string_view> keys) const;
  /// Throws, naming every key that was neither read nor listed as harmless.
  void finish() const;

  /// Throws the error of this object for `key`: "... key "k" = 3 <why>".
  [[noreturn]] void refuse(std::string_view key, const std::string& why) const;

 private:
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json& need(std::string_view key) const;

  std::filesystem::path file_;
  std::shared_ptr<const nlohmann::json> values_;
  mutable std::set<std::string, std::less<>> read_;
};

}  // namespace troupe::spec
