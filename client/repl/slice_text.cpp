#include "client/repl/slice_text.h"

#include <cstdio>
#include <stdexcept>

#include "base/numbers.h"

namespace troupe::repl {
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
