#include "models/text/html_text.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_map>
#include <vector>

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

constexpr auto npos = std::string_view::npos;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_void_element(std::string_view name) {
  static constexpr std::string_view kNames[] = {
      "area",     "base",    "br",       "col",   "embed", "hr",      "img",    "input",
      "keygen",   "link",    "menuitem", "meta",  "param", "source",  "track",  "wbr",
      "basefont", "bgsound", "command",  "frame", "image", "isindex", "nextid", "spacer"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

/// Elements whose text is not the page's.
bool is_quiet_element(std::string_view name) {
  return name == "rt" || name == "rp" || name == "style" || name == "script" || name == "template";
}

/// Reads one text from front to back. When nothing more can be made out, reading goes on once with
/// unclosed markup taken for text; the second time the rest is text.
class HtmlReader {
 public:
  explicit HtmlReader(std::string_view text) : text_(text) {}

  std::string read() {
    while (at_ < text_.size()) {
      if (!raw_element_.empty()) {
        if (!skip_raw_element()) return out_;
        continue;
      }
      const auto next = std::min(text_.find_first_of("&<", at_), text_.size());
      add(text_.substr(at_, next - at_));
      at_ = next;
      if (at_ == text_.size()) break;
      const bool read = text_[at_] == '<' ? read_markup() : read_reference();
      if (read) continue;
      if (at_end_) {
        add(text_.substr(at_));
        break;
      }
      at_end_ = true;
    }
    return out_;
  }

 private:
  char peek(std::size_t distance) const {
    return at_ + distance < text_.size() ? text_[at_ + distance] : '\0';
  }
  bool starts_with(std::string_view prefix) const { return text_.substr(at_).starts_with(prefix); }

  void add(std::string_view piece) {
    if (quiet_ == 0) out_ += piece;
  }

  void open(std::string_view name) {
    open_.emplace_back(name);
    if (is_quiet_element(name)) ++quiet_;
  }

  void close(std::string_view name) {
    if (std::ranges::find(open_, name) == open_.end()) return;
    for (bool last = false; !last;) {
      last = open_.back() == name;
      if (is_quiet_element(open_.back())) --quiet_;
      open_.pop_back();
    }
  }

  /// Script and style end at their own end tag only.
  bool skip_raw_element() {
    for (auto at = text_.find("</", at_); at != npos; at = text_.find("</", at + 2)) {
      auto i = at + 2;
      while (i < text_.size() && is_space(text_[i]))
        ++i;
      if (!text_.substr(i).starts_with(raw_element_)) continue;
      i += raw_element_.size();
      while (i < text_.size() && is_space(text_[i]))
        ++i;
      if (i >= text_.size() || text_[i] != '>') continue;
      close(raw_element_);
      raw_element_.clear();
      at_ = i + 1;
      return true;
    }
    return false;
  }

  bool read_markup() {
    std::size_t end = npos;
    if (is_letter(peek(1))) {
      end = read_start_tag();
    } else if (starts_with("</")) {
      end = read_end_tag();
    } else if (starts_with("<!--")) {
      end = after_closing("--", at_ + 4);
    } else if (starts_with("<![")) {
      end = read_marked_section();
    } else if (starts_with("<?") || starts_with("<!")) {
      end = text_.find('>', at_ + 2);
      if (end != npos) ++end;
    } else if (at_ + 1 < text_.size()) {
      add("<");
      end = at_ + 1;
    } else {
      return false;
    }
    if (end == npos) {
      if (!at_end_) return false;
      const auto greater = text_.find('>', at_ + 1);
      const auto less = text_.find('<', at_ + 1);
      end = greater != npos ? greater + 1 : less != npos ? less : at_ + 1;
      add(text_.substr(at_, end - at_));
    }
    at_ = end;
    return true;
  }

  /// Returns the position behind the next `closing`, white space and '>'; npos if there is none.
  std::size_t after_closing(std::string_view closing, std::size_t from) const {
    for (auto at = text_.find(closing, from); at != npos; at = text_.find(closing, at + 1)) {
      auto i = at + closing.size();
      while (i < text_.size() && is_space(text_[i]))
        ++i;
      if (i < text_.size() && text_[i] == '>') return i + 1;
    }
    return npos;
  }

  std::size_t read_marked_section() {
    if (!starts_with("<![cdata[")) return after_closing("]", at_ + 3);
    const auto end = after_closing("]]", at_ + 9);
    if (end != npos) add(text_.substr(at_ + 9, text_.rfind("]]", end) - at_ - 9));
    return end;
  }

  std::size_t read_start_tag() {
    std::size_t i = at_ + 1;
    while (i < text_.size() && !is_space(text_[i]) && text_[i] != '/' && text_[i] != '>')
      ++i;
    const auto name = text_.substr(at_ + 1, i - at_ - 1);
    i = after_attributes(i);
    if (i == npos) return npos;
    const bool closed = text_[i] == '/' || is_void_element(name);
    if (!closed) open(name);
    if (!closed && (name == "script" || name == "style")) raw_element_ = name;
    return text_[i] == '/' ? i + 2 : i + 1;
  }

  /// Returns the position of the tag's '>' or "/>".
  std::size_t after_attributes(std::size_t i) const {
    const auto skip_space = [&] {
      while (i < text_.size() && is_space(text_[i]))
        ++i;
    };
    for (;;) {
      skip_space();
      if (i >= text_.size()) return npos;
      if (text_[i] == '>') return i;
      if (text_[i] == '/') {
        if (i + 1 < text_.size() && text_[i + 1] == '>') return i;
        ++i;
        continue;
      }
      ++i;  // even '=' may begin a name
      i = std::min(text_.find_first_of("=/> \t\n\v\f\r", i), text_.size());
      const auto name_end = i;
      skip_space();
      if (i >= text_.size() || text_[i] != '=') {
        i = name_end;
        continue;
      }
      while (i < text_.size() && text_[i] == '=')
        ++i;
      skip_space();
      if (i >= text_.size()) return npos;
      if (text_[i] == '"' || text_[i] == '\'') {
        i = text_.find(text_[i], i + 1);
        if (i == npos) return npos;
        ++i;
      } else {
        i = std::min(text_.find_first_of("> \t\n\v\f\r", i), text_.size());
      }
    }
  }

  std::size_t read_end_tag() {
    const auto end = text_.find('>', at_ + 1);
    if (end == npos) return npos;
    auto first = at_ + 2;
    while (is_space(text_[first]))
      ++first;
    if (is_letter(text_[first])) {
      const auto last = text_.find_first_of("/> \t\n\v\f\r", first);
      close(text_.substr(first, last - first));
    }
    return end + 1;
  }

  bool read_reference() {
    if (starts_with("&#")) return read_number();
    if (is_letter(peek(1))) return read_name();
    if (at_ + 1 == text_.size()) return false;
    add("&");
    ++at_;
    return true;
  }

  bool read_number() {
    const bool hex = peek(2) == 'x' || peek(2) == 'X';
    const auto first = at_ + (hex ? 3 : 2);
    auto end = first;
    while (end < text_.size() && (hex ? is_hex(text_[end]) : is_digit(text_[end])))
      ++end;
    if (end == first || end == text_.size() || is_hex(text_[end])) {
      const bool worth_going_on = text_.find(';', at_) != npos;
      if (worth_going_on) {
        add("&#");
        at_ += 2;
      }
      return false;
    }
    add(page_number_text(first, end, hex));
    at_ = text_[end] == ';' ? end + 1 : end;
    return true;
  }

  /// Unlike unescape_html, control characters stay.
  std::string page_number_text(std::size_t first, std::size_t end, bool hex) const {
    std::uint64_t value = 0;
    for (auto i = first; i < end; ++i) {
      const int digit = is_digit(text_[i]) ? text_[i] - '0' : (text_[i] | 0x20) - 'a' + 10;
      value = std::min<std::uint64_t>(value * (hex ? 16 : 10) + digit, 0x110000);
    }
    const bool no_character =
        value == 0 || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF);
    std::string text;
    append_utf8(text, no_character ? 0xFFFD : from_windows_1252(static_cast<char32_t>(value)));
    return text;
  }

  bool read_name() {
    auto end = at_ + 1;
    const auto is_name = [](char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '.'; };
    while (end < text_.size() && is_name(text_[end]))
      ++end;
    // A '-' or '.' at the text's end closes the name; a letter there leaves the matter open.
    if (end == text_.size()) {
      while (end > at_ + 1 && (is_letter(text_[end - 1]) || is_digit(text_[end - 1])))
        --end;
      if (end == at_ + 1) {
        if (at_end_ && at_ + 2 == text_.size()) ++at_;
        return false;
      }
      --end;
    }
    const auto name = text_.substr(at_ + 1, end - at_ - 1);
    const auto known = entity_text(name);
    add(known.empty() ? text_.substr(at_, end - at_) : known);
    at_ = text_[end] == ';' ? end + 1 : end;
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool at_end_ = false;
  std::string out_;
  std::vector<std::string> open_;
  int quiet_ = 0;
  std::string raw_element_;
};

struct Ligature {
  char32_t value;
  std::string_view text;
};

constexpr Ligature kLigatures[] = {{0x0132, "IJ"}, {0x0133, "ij"}, {0x0149, "ʼn"},  {0x01C4, "DŽ"},
                                   {0x01C5, "Dž"}, {0x01C6, "dž"}, {0x01C7, "LJ"},  {0x01C8, "Lj"},
                                   {0x01C9, "lj"}, {0x01CA, "NJ"}, {0x01CB, "Nj"},  {0x01CC, "nj"},
                                   {0x01F1, "DZ"}, {0x01F2, "Dz"}, {0x01F3, "dz"},  {0xFB00, "ff"},
                                   {0xFB01, "fi"}, {0xFB02, "fl"}, {0xFB03, "ffi"}, {0xFB04, "ffl"},
                                   {0xFB05, "ſt"}, {0xFB06, "st"}};

char32_t straight_quote(char32_t value) {
  if (value == 0x02BC || (value >= 0x2018 && value <= 0x201B)) return '\'';
  return value >= 0x201C && value <= 0x201F ? U'"' : value;
}

bool is_dropped(char32_t value) {
  if (value < 0x20) return value != '\t' && value != '\n' && value != '\f' && value != '\r';
  return value == 0x7F || (value >= 0x206A && value <= 0x206F) || value == 0xFEFF ||
         (value >= 0xFFF9 && value <= 0xFFFC);
}

/// Bytes of the terminal escape at the front of `text`, ESC [ digits and semicolons, a letter; or
/// 0.
std::size_t terminal_escape(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const auto end = text.find_first_not_of("0123456789;", 2);
  if (end == std::string_view::npos) return 0;
  const char lower = static_cast<char>(text[end] | 0x20);
  return lower >= 'a' && lower <= 'z' ? end + 1 : 0;
}

void append_usual(std::string& out, char32_t value) {
  const auto* ligature = std::ranges::find(kLigatures, value, &Ligature::value);
  if (ligature != std::end(kLigatures)) {
    out += ligature->text;
  } else {
    out += usual_width(straight_quote(value));
  }
}

/// Repairs a line once.
std::string repair_once(std::string_view line, bool unescape) {
  const std::string text =
      unescape ? unescape_html(line, References::terminated) : std::string(line);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (const auto escape = terminal_escape(std::string_view(text).substr(at))) {
      at += escape;
      continue;
    }
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    const char32_t value = from_windows_1252(point.value);
    if (is_dropped(value)) continue;
    const bool breaks = value == '\r' || value == 0x2028 || value == 0x2029;
    if (value == '\r' && at < text.size() && text[at] == '\n') continue;
    append_usual(out, breaks ? U'\n' : value);
  }
  return nfc(out);
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

std::string html_text(std::string_view text) {
  return HtmlReader(text).read();
}

std::string repair_text(std::string_view text) {
  std::string out;
  bool unescape = true;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size() - 1) + 1;
    std::string line(text.substr(at, end - at));
    unescape = unescape && line.find('<') == std::string::npos;
    for (;;) {
      auto repaired = repair_once(line, unescape);
      const bool done = repaired == line;
      line = std::move(repaired);
      if (done) break;
    }
    out += line;
    at = end;
  }
  return out;
}

}  // namespace troupe::models
