#include "actors/user/json_values.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "troupe/actor_values.h"

namespace troupe::runtime {
namespace {

/// A type as the registry names it, taken apart: "map<string, list<int32>>".
struct TypeTree {
  std::string name;             // "map", "int64", "Point", or a number inside array<T, N>
  bool is_struct = false;       // {…} behind the name
  std::vector<TypeTree> inner;  // what stands in <> or {}
};

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

/// "int64, list<string>" → its types. Throws std::invalid_argument for text that is none.
std::vector<TypeTree> parse_types(std::string_view text) {
  Parser parser(text);
  auto types = parser.list('\0');
  if (!parser.at_end())
    throw std::invalid_argument("[types] \"" + std::string(text) +
                                "\" has something behind its end");
  return types;
}

using nlohmann::json;

constexpr std::int64_t kShownNumbers = 4096;

[[noreturn]] void refuse(const TypeTree& type, const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  throw std::invalid_argument("is " + text + ", not a " + type.name);
}

template <class F>
bool with_number(const std::string& name, F&& use) {
  if (name == "int8") return use(std::int8_t{}), true;
  if (name == "int16") return use(std::int16_t{}), true;
  if (name == "int32") return use(std::int32_t{}), true;
  if (name == "int64") return use(std::int64_t{}), true;
  if (name == "uint8") return use(std::uint8_t{}), true;
  if (name == "uint16") return use(std::uint16_t{}), true;
  if (name == "uint32") return use(std::uint32_t{}), true;
  if (name == "uint64") return use(std::uint64_t{}), true;
  if (name == "float32") return use(float{}), true;
  if (name == "float64") return use(double{}), true;
  return false;
}

template <class T>
T number_from(const TypeTree& type, const json& value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!value.is_number()) refuse(type, value);
    return static_cast<T>(value.get<double>());
  } else {
    if (!value.is_number_integer()) refuse(type, value);
    const bool negative =
        value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
    const bool fits = negative ? std::in_range<T>(value.get<std::int64_t>())
                               : std::in_range<T>(value.get<std::uint64_t>());
    if (!fits) refuse(type, value);
    return negative ? static_cast<T>(value.get<std::int64_t>())
                    : static_cast<T>(value.get<std::uint64_t>());
  }
}

void write(const TypeTree& type, const json& value, ValueWriter& out);

void write_fields(const TypeTree& type, const json& value, ValueWriter& out) {
  if (!value.is_array() || value.size() != type.inner.size()) refuse(type, value);
  for (std::size_t i = 0; i < type.inner.size(); ++i)
    write(type.inner[i], value[i], out);
}

void write_array(const TypeTree& type, const json& value, ValueWriter& out) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data"))
    refuse(type, value);
  Array array;
  array.dtype = value.at("dtype").get<std::string>();
  array.shape = value.at("shape").get<std::vector<std::int64_t>>();
  ValueWriter numbers;
  TypeTree element{array.dtype, false, {}};
  for (const auto& item : value.at("data")) {
    if (!with_number(array.dtype, [&](auto zero) {
          Value<decltype(zero)>::write(numbers, number_from<decltype(zero)>(element, item));
        }))
      throw std::invalid_argument("has dtype " + array.dtype + ", which cannot be written as text");
  }
  if (array.elements() != static_cast<std::int64_t>(value.at("data").size()))
    throw std::invalid_argument("has a shape that its data do not fill");
  array.bytes = numbers.take();
  Value<Array>::write(out, array);
}

void write(const TypeTree& type, const json& value, ValueWriter& out) {
  if (type.is_struct) {
    out.length(0);
    return write_fields(type, value, out);
  }
  if (with_number(type.name, [&](auto zero) {
        Value<decltype(zero)>::write(out, number_from<decltype(zero)>(type, value));
      }))
    return;
  if (type.name == "bool") {
    if (!value.is_boolean()) refuse(type, value);
    return Value<bool>::write(out, value.get<bool>());
  }
  if (type.name == "string") {
    if (!value.is_string()) refuse(type, value);
    return Value<std::string>::write(out, value.get<std::string>());
  }
  if (type.name == "actor") {
    if (!value.is_number_unsigned()) refuse(type, value);
    return Value<std::uint64_t>::write(out, value.get<std::uint64_t>());
  }
  if (type.name == "Array") return write_array(type, value, out);
  if (type.name == "unit") return out.length(0);
  if (type.name == "list" || type.name == "array") {
    if (!value.is_array()) refuse(type, value);
    if (type.name == "list") out.length(value.size());
    if (type.name == "array" && value.size() != std::stoull(type.inner.at(1).name))
      refuse(type, value);
    for (const auto& item : value)
      write(type.inner.at(0), item, out);
    return;
  }
  if (type.name == "optional") {
    Value<bool>::write(out, !value.is_null());
    if (!value.is_null()) write(type.inner.at(0), value, out);
    return;
  }
  if (type.name == "tuple") return write_fields(type, value, out);
  if (type.name == "map") {
    const bool object = value.is_object() && type.inner.at(0).name == "string";
    if (!object && !value.is_array()) refuse(type, value);
    out.length(value.size());
    if (object) {
      for (const auto& [key, item] : value.items()) {
        Value<std::string>::write(out, key);
        write(type.inner.at(1), item, out);
      }
    } else {
      for (const auto& item : value)
        write_fields({"pair", false, type.inner}, item, out);
    }
    return;
  }
  if (type.name == "variant") {
    if (!value.is_object() || !value.contains("index") || !value.contains("value"))
      refuse(type, value);
    const auto index = value.at("index").get<std::size_t>();
    if (index >= type.inner.size()) refuse(type, value);
    Value<std::uint8_t>::write(out, static_cast<std::uint8_t>(index));
    return write(type.inner[index], value.at("value"), out);
  }
  throw std::invalid_argument("has type " + type.name + ", which cannot be written as text");
}

json read(const TypeTree& type, ValueReader& in);

json read_fields(const std::vector<TypeTree>& types, ValueReader& in) {
  json items = json::array();
  for (const auto& each : types)
    items.push_back(read(each, in));
  return items;
}

json read_array(ValueReader& in) {
  Array array;
  Value<Array>::read(in, array);
  json shown = {{"dtype", array.dtype}, {"shape", array.shape}, {"bytes", array.bytes.size()}};
  ValueReader numbers(array.bytes);
  json data = json::array();
  const bool known = with_number(array.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto count = static_cast<std::int64_t>(array.bytes.size() / sizeof(T));
    for (std::int64_t i = 0; i < std::min(count, kShownNumbers); ++i) {
      T number{};
      Value<T>::read(numbers, number);
      data.push_back(number);
    }
  });
  if (known) shown["data"] = std::move(data);
  return shown;
}

json read(const TypeTree& type, ValueReader& in) {
  ValueReader::Nested nested(in);
  json value;
  if (type.is_struct) {
    in.length();
    return read_fields(type.inner, in);
  }
  if (with_number(type.name, [&](auto number) {
        Value<decltype(number)>::read(in, number);
        value = number;
      }))
    return value;
  if (type.name == "bool") {
    bool flag = false;
    Value<bool>::read(in, flag);
    return flag;
  }
  if (type.name == "string") {
    std::string text;
    Value<std::string>::read(in, text);
    return text;
  }
  if (type.name == "actor") {
    std::uint64_t id = 0;
    Value<std::uint64_t>::read(in, id);
    return id;
  }
  if (type.name == "Array") return read_array(in);
  if (type.name == "unit") {
    in.length();
    return nullptr;
  }
  if (type.name == "list" || type.name == "array") {
    value = json::array();
    const auto length = type.name == "list" ? in.length() : std::stoull(type.inner.at(1).name);
    for (std::size_t i = 0; i < length; ++i)
      value.push_back(read(type.inner.at(0), in));
    return value;
  }
  if (type.name == "optional") {
    bool present = false;
    Value<bool>::read(in, present);
    return present ? read(type.inner.at(0), in) : json(nullptr);
  }
  if (type.name == "tuple") return read_fields(type.inner, in);
  if (type.name == "map") {
    const bool object = type.inner.at(0).name == "string";
    value = object ? json::object() : json::array();
    for (std::size_t left = in.length(); left > 0; --left) {
      json pair = read_fields(type.inner, in);
      if (object)
        value[pair[0].get<std::string>()] = pair[1];
      else
        value.push_back(std::move(pair));
    }
    return value;
  }
  if (type.name == "variant") {
    std::uint8_t index = 0;
    Value<std::uint8_t>::read(in, index);
    return {{"index", index}, {"value", read(type.inner.at(index), in)}};
  }
  throw std::invalid_argument("[types] " + type.name + " cannot be shown as text");
}

}  // namespace

std::string arguments_from_json(std::string_view types, std::string_view text) {
  const auto wanted = parse_types(types);
  const json values = json::parse(text, nullptr, false);
  if (!values.is_array())
    throw std::invalid_argument("the arguments are no JSON array: [" + std::string(types) + "]");
  if (values.size() != wanted.size()) {
    throw std::invalid_argument("takes " + std::to_string(wanted.size()) + " arguments (" +
                                std::string(types) + "), not " + std::to_string(values.size()));
  }
  ValueWriter out;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    try {
      write(wanted[i], values[i], out);
    } catch (const std::exception& error) {
      throw std::invalid_argument("argument " + std::to_string(i + 1) + " " + error.what());
    }
  }
  return out.take();
}

std::string json_from_result(std::string_view type, std::string_view bytes) {
  const auto types = parse_types(type);
  ValueReader in(bytes);
  return read(types.at(0), in).dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace troupe::runtime
