#include "client/repl/words.h"

#include <algorithm>
#include <nlohmann/json.hpp>

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

}  // namespace troupe::repl
