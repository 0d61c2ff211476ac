#include "models/text/html_text.h"

#include <algorithm>
#include <vector>

#include "models/text/ascii.h"
#include "models/text/html_entities.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

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

}  // namespace

std::string html_text(std::string_view text) {
  return HtmlReader(text).read();
}

}  // namespace troupe::models
