#include "models/text/html_entities.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "models/text/ascii.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

constexpr std::string_view kEntities =
#include "models/text/html_entities.inc"
    ;

constexpr std::uint64_t kBeyond = 0x110000;
constexpr std::size_t kLongestName = 32;  // characters that a lenient reference may have

struct Entity {
  std::string text;
  bool bare = false;  // may end without a semicolon
};

std::uint64_t hex_number(std::string_view digits) {
  std::uint64_t value = 0;
  for (const char c : digits)
    value = std::min(value * 16 + hex_value(c), kBeyond);
  return value;
}

using Table = std::unordered_map<std::string_view, Entity>;

Table read_table() {
  Table table;
  for (std::size_t at = 0; at < kEntities.size();) {
    const auto end = kEntities.find(' ', at);
    const auto entry = kEntities.substr(at, end - at);
    const auto equals = entry.find('=');
    auto name = entry.substr(0, equals);
    Entity entity;
    entity.bare = name.back() == '*';
    if (entity.bare) name.remove_suffix(1);
    for (auto points = entry.substr(equals + 1); !points.empty();) {
      const auto plus = std::min(points.find('+'), points.size());
      append_utf8(entity.text, static_cast<char32_t>(hex_number(points.substr(0, plus))));
      points.remove_prefix(std::min(plus + 1, points.size()));
    }
    table.emplace(name, std::move(entity));
    at = end + 1;
  }
  return table;
}

const Entity* find_entity(std::string_view name) {
  static const Table table = read_table();
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

/// A reference at the front of a text: bytes that it takes, 0 for none, and what it stands for.
struct Match {
  std::size_t bytes = 0;
  std::string text;
};

/// `text` begins with "&#".
Match match_numeric(std::string_view text) {
  std::size_t at = 2;
  const bool hex = at < text.size() && (text[at] == 'x' || text[at] == 'X');
  if (hex) ++at;
  const std::size_t first = at;
  std::uint64_t value = 0;
  for (; at < text.size() && (hex ? hex_value(text[at]) >= 0 : is_digit(text[at])); ++at) {
    value = std::min<std::uint64_t>(value * (hex ? 16 : 10) + hex_value(text[at]), kBeyond);
  }
  if (at == first) return {};
  if (at < text.size() && text[at] == ';') ++at;
  return {at, numeric_reference_text(value)};
}

/// `text` begins with "&"; the longest name that the table knows wins.
Match match_name(std::string_view text) {
  std::size_t end = 1;
  for (std::size_t points = 0; end < text.size() && points < kLongestName; ++points) {
    if (std::string_view("\t\n\f <&#;").find(text[end]) != std::string_view::npos) break;
    end += code_point_at(text, end).bytes;
  }
  if (end < text.size() && text[end] == ';') {
    if (const Entity* entity = find_entity(text.substr(1, end - 1))) return {end + 1, entity->text};
  }
  for (std::size_t length = end - 1; length > 1; --length) {
    const Entity* entity = find_entity(text.substr(1, length));
    if (entity && entity->bare) return {length + 1, entity->text};
  }
  return {};
}

}  // namespace

std::string_view entity_text(std::string_view name) {
  const Entity* entity = find_entity(name);
  return entity ? std::string_view(entity->text) : std::string_view();
}

char32_t from_windows_1252(char32_t value) {
  static constexpr std::array<char32_t, 32> kTable = {
      0x20AC, 0x81,   0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
      0x2039, 0x0152, 0x8D,   0x017D, 0x8F,   0x90,   0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
      0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x9D,   0x017E, 0x0178};
  return value >= 0x80 && value <= 0x9F ? kTable[value - 0x80] : value;
}

std::string numeric_reference_text(std::uint64_t number) {
  std::string text;
  const bool surrogate = number >= 0xD800 && number <= 0xDFFF;
  if (number == 0 || surrogate || number >= kBeyond) {
    append_utf8(text, 0xFFFD);
    return text;
  }
  const auto value = static_cast<char32_t>(number);
  const bool control =
      (value < 0x20 && value != '\t' && value != '\n' && value != '\f' && value != '\r') ||
      value == 0x7F;
  const bool no_character = (value >= 0xFDD0 && value <= 0xFDEF) || (value & 0xFFFEU) == 0xFFFEU;
  if (!control && !no_character) append_utf8(text, from_windows_1252(value));
  return text;
}

std::string unescape_html(std::string_view text, References references) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto next = std::min(text.find('&', at), text.size());
    out += text.substr(at, next - at);
    at = next;
    if (at == text.size()) break;
    const auto rest = text.substr(at);
    Match match = rest.substr(0, 2) == "&#" ? match_numeric(rest) : match_name(rest);
    const bool open = match.bytes > 0 && rest[match.bytes - 1] != ';';
    if (match.bytes == 0 || (open && references == References::terminated)) match = {1, "&"};
    out += match.text;
    at += match.bytes;
  }
  return out;
}

}  // namespace troupe::models
