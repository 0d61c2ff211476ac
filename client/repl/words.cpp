#include "client/repl/words.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/numbers.h"

namespace troupe::repl {
namespace {

bool is_space(char letter) {
  return letter == ' ' || letter == '\t' || letter == '\r';
}

class Splitter {
 public:
  explicit Splitter(const std::string& text) : text_(text) {}

  void run() {
    while (at_ < text_.size()) {
      const char letter = text_[at_++];
      if (comment_) {
        if (letter == '\n') end_command();
      } else if (quote_ != 0) {
        take_quoted(letter);
      } else {
        take(letter);
      }
    }
    if (quote_ == 0) end_command();
  }

  char open_quote() const { return quote_; }
  std::vector<Words> commands() && { return std::move(commands_); }

 private:
  void take_quoted(char letter) {
    if (letter == quote_) {
      quote_ = 0;
    } else if (quote_ == '"' && letter == '\\' && at_ < text_.size() &&
               (text_[at_] == '"' || text_[at_] == '\\')) {
      word_ += text_[at_++];
    } else {
      word_ += letter;
    }
  }

  void take(char letter) {
    if (letter == '\n') return end_command();
    if (letter == '\'' || letter == '"') {
      quote_ = letter;
      begun_ = true;
    } else if (letter == '\\' && at_ < text_.size()) {
      add(text_[at_++]);
    } else if (brackets_ > 0 && is_space(letter)) {
      // `[0, 1:2]` is one word.
    } else if (letter == ';') {
      end_command();
    } else if (is_space(letter)) {
      end_word();
    } else if (letter == '#' && !begun_) {
      comment_ = true;
    } else {
      if (letter == '[') ++brackets_;
      if (letter == ']') brackets_ = std::max(0, brackets_ - 1);
      add(letter);
    }
  }

  void add(char letter) {
    word_ += letter;
    begun_ = true;
  }

  void end_word() {
    if (begun_) words_.push_back(std::move(word_));
    word_.clear();
    begun_ = false;
    brackets_ = 0;
  }

  void end_command() {
    end_word();
    comment_ = false;
    if (!words_.empty()) commands_.push_back(std::move(words_));
    words_.clear();
  }

  const std::string& text_;
  std::size_t at_ = 0;
  std::vector<Words> commands_;
  Words words_;
  std::string word_;
  bool begun_ = false;
  bool comment_ = false;
  char quote_ = 0;
  int brackets_ = 0;
};

}  // namespace

std::vector<Words> split_commands(const std::string& text) {
  Splitter splitter(text);
  splitter.run();
  if (splitter.open_quote() != 0)
    throw LineError(std::string("a quote ") + splitter.open_quote() + " is not closed");
  return std::move(splitter).commands();
}

char open_quote(const std::string& text) {
  Splitter splitter(text);
  splitter.run();
  return splitter.open_quote();
}

std::string escaped(const std::string& part, char quote) {
  const std::string special = quote == '\'' ? "" : quote == '"' ? "\"\\" : " \t\r\n;#'\"\\[]";
  std::string text;
  for (const char letter : part) {
    if (special.find(letter) != std::string::npos) text += '\\';
    text += letter;
  }
  return text;
}

std::string call_arguments(const Words& words) {
  using nlohmann::json;
  json arguments = json::array();
  for (const std::string& word : words) {
    auto value = json::parse(word, nullptr, /*allow_exceptions=*/false);
    arguments.push_back(value.is_discarded() ? json(word) : std::move(value));
  }
  return arguments.dump(-1, ' ', false, json::error_handler_t::replace);
}

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw std::invalid_argument("slice \"" + text + "\": " + why);
}

std::int64_t number_of(const std::string& word, const std::string& text) {
  const auto number = parse_number<std::int64_t>(word);
  if (!number)
    refuse(text,
           "\"" + word + "\" is no index; write i, i:k or : for each dimension, as [0,2:4,:]");
  return *number;
}

SliceRange range_of(const std::string& word, const std::string& text) {
  SliceRange range;
  const auto colon = word.find(':');
  if (colon == std::string::npos) {
    range.begin = number_of(word, text);
    range.whole = false;
    range.single = true;
    return range;
  }
  const std::string first = word.substr(0, colon);
  const std::string last = word.substr(colon + 1);
  if (first.empty() && last.empty()) return range;
  range.begin = first.empty() ? 0 : number_of(first, text);
  range.whole = false;
  // To the end: 0 cannot be an end that leaves anything.
  range.end = last.empty() ? 0 : number_of(last, text);
  if (!last.empty() && range.end == 0) refuse(text, "\"" + word + "\" is empty");
  return range;
}

std::string value_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

void add_values(std::string& out, const TensorValues& values, std::size_t dimension,
                std::size_t& at, std::size_t indent) {
  if (dimension == values.shape.size()) {
    out += at < values.values.size() ? value_text(values.values[at++]) : "?";
    return;
  }
  const bool innermost = dimension + 1 == values.shape.size();
  out += '[';
  for (std::int64_t i = 0; i < values.shape[dimension]; ++i) {
    if (i > 0) {
      out += innermost ? ", " : ",\n";
      if (!innermost) out.append(indent + 1, ' ');
    }
    add_values(out, values, dimension + 1, at, indent + 1);
  }
  out += ']';
}

}  // namespace

std::vector<SliceRange> parse_slice(const std::string& text) {
  std::string inner;
  for (const char letter : text) {
    if (letter != ' ') inner += letter;
  }
  const bool opens = !inner.empty() && inner.front() == '[';
  const bool closes = !inner.empty() && inner.back() == ']';
  if (opens != closes) refuse(text, "a bracket is missing");
  if (opens) inner = inner.substr(1, inner.size() - 2);
  if (inner.empty()) return {};
  std::vector<SliceRange> ranges;
  for (std::size_t begin = 0;;) {
    const auto comma = inner.find(',', begin);
    ranges.push_back(range_of(inner.substr(begin, comma - begin), text));
    if (comma == std::string::npos) return ranges;
    begin = comma + 1;
  }
}

std::string values_text(const TensorValues& values) {
  std::string out;
  std::size_t at = 0;
  add_values(out, values, 0, at, 0);
  return out;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  text += ']';
  return text;
}

}  // namespace troupe::repl
