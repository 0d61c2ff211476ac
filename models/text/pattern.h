#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

struct pcre2_real_code_8;

namespace troupe::models {

/// One compiled search and its replacement, by PCRE2 on UTF-8. \w, \d, \s, \b and their opposites
/// mean what they mean to Python's `re` on text, whatever the release of PCRE2: letters, numbers
/// and the underscore of Unicode; decimal digits; what str.isspace calls space.
class Pattern {
 public:
  /// `replacement` may name groups as $1. Throws std::invalid_argument for what does not compile.
  explicit Pattern(std::string_view pattern, std::string replacement = "");

  /// Every match from left to right replaced, as re.sub does it; `text` is valid UTF-8. Throws
  /// std::runtime_error when a text takes more backtracking than PCRE2's limits allow.
  std::string replace_all(const std::string& text) const;

  /// Every match from left to right, as views of `text`, which is valid UTF-8. Throws as
  /// replace_all.
  std::vector<std::string_view> find_all(std::string_view text) const;

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };

  std::unique_ptr<pcre2_real_code_8, Free> code_;
  std::string replacement_;
};

}  // namespace troupe::models
