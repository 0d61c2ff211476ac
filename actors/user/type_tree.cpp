#include "actors/user/type_tree.h"

#include <stdexcept>

namespace troupe::runtime {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::vector<TypeTree> list(char end) {
    std::vector<TypeTree> types;
    skip();
    if (peek() == end) return types;
    for (;;) {
      types.push_back(one());
      skip();
      if (peek() != ',') return types;
      ++at_;
    }
  }
  bool at_end() const { return at_ == text_.size(); }

 private:
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip() {
    while (peek() == ' ')
      ++at_;
  }
  TypeTree one() {
    skip();
    if (++depth_ > 64) fail();
    TypeTree type;
    while (!at_end() && std::string_view("<>{},").find(peek()) == std::string_view::npos)
      type.name += text_[at_++];
    if (type.name.empty()) fail();
    // Names of users' class templates keep their arguments: "Box<int>{int32}".
    if (peek() == '<') {
      ++at_;
      type.inner = list('>');
      expect('>');
    }
    if (peek() == '{') {
      ++at_;
      type.is_struct = true;
      type.inner = list('}');
      expect('}');
    }
    --depth_;
    return type;
  }
  void expect(char letter) {
    skip();
    if (peek() != letter) fail();
    ++at_;
  }
  [[noreturn]] void fail() const {
    throw std::invalid_argument("[types] \"" + std::string(text_) + "\" cannot be read at " +
                                std::to_string(at_));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<TypeTree> parse_types(std::string_view text) {
  Parser parser(text);
  auto types = parser.list('\0');
  if (!parser.at_end())
    throw std::invalid_argument("[types] \"" + std::string(text) +
                                "\" has something behind its end");
  return types;
}

}  // namespace troupe::runtime
