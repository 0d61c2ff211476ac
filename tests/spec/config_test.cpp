#include "models/spec/config.h"

#include <cmath>

#include <functional>
#include "models/spec/json_text.h"
#include "models/spec/weight_index.h"

#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using spec::ConfigReader;

namespace {

std::string finish_error(const std::string& text,
                         const std::function<void(const ConfigReader&)>& read) {
  return error_of([&] {
    const ConfigReader config(text, "dir/config.json");
    read(config);
    config.finish();
  });
}

}  // namespace

TEST_CASE("every key is read, harmless or refused by name") {
  const std::string text = R"({"_class_name":"X","width":3,"dropout":0.1,"strange":[1,2]})";
  CHECK(finish_error(text, [](const ConfigReader& config) {
          config.integer("width");
          config.harmless({"dropout"});
        }) == "[read_config] dir/config.json: not supported: key \"strange\" = [1,2]");
  CHECK(finish_error(text, [](const ConfigReader& config) {
          config.integer("width");
          config.harmless({"dropout", "strange"});
        }) == "");
}

TEST_CASE("getters name key, value and what is allowed") {
  const ConfigReader config(R"({"n":0,"f":1.5,"t":"a","b":true,"z":null,"big":99999999999999999999,
    "l":[1,2],"m":[1,"x"]})",
                            "c.json");
  CHECK(error_of([&] { config.integer("n"); }) ==
        "[read_config] c.json: key \"n\" = 0 must be an integer from 1 to 2147483647");
  CHECK(contains(error_of([&] { config.integer("f"); }), "\"f\" = 1.5 must be an integer"));
  CHECK(contains(error_of([&] { config.integer("big"); }), "must be an integer"));
  CHECK(contains(error_of([&] { config.integer("none"); }), "key \"none\" is missing"));
  CHECK(contains(error_of([&] { config.boolean("t"); }), "must be true or false"));
  CHECK(contains(error_of([&] { config.text("b"); }), "must be a string"));
  CHECK(contains(error_of([&] { config.integers("m"); }), "must be a list of integers"));
  CHECK(contains(error_of([&] { config.number("t"); }), "must be a number"));
  CHECK(contains(error_of([&] { config.only("t", "b"); }), "\"t\" = \"a\" is not supported"));
  CHECK(contains(error_of([&] { config.choice_or("t", "x", {"x", "y"}); }), "supported: x, y"));
  CHECK(config.integer("n", 0) == 0);
  CHECK(config.integer_or("none", 7) == 7);
  CHECK_FALSE(config.optional_integer("z").has_value());
  CHECK(config.number("f") == 1.5);
  CHECK(config.integers("l") == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("Python's NaN and infinities are numbers, also beside strings that look like them") {
  const ConfigReader config(
      R"({"a":-Infinity,"b": Infinity,"c":NaN,"d":"say \"NaN\", Infinity","e":[-Infinity,1]})",
      "c");
  CHECK(config.number("a") == -std::numeric_limits<double>::infinity());
  CHECK(config.number("b") == std::numeric_limits<double>::infinity());
  CHECK(std::isnan(config.number("c")));
  CHECK(config.text("d") == "say \"NaN\", Infinity");
  CHECK(config.numbers("e").back() == 1);
  CHECK(contains(error_of([] { ConfigReader(R"({"a":Infinityx})", "c"); }), "is not JSON"));
}

TEST_CASE("JSON that is damaged, doubled or too deep is refused") {
  CHECK(contains(error_of([] { ConfigReader("[1]", "c"); }), "c: is not a JSON object"));
  CHECK(contains(error_of([] { ConfigReader(R"({"a":1,"a":2})", "c"); }), "\"a\" occurs twice"));
  CHECK(
      error_of([] { ConfigReader("{\"a\": 1,\n \"b\": tru }", "c"); }) ==
      "[parse_json] c: is not JSON: line 2, column 10: invalid literal; last read: '\"b\": tru '");
  CHECK(contains(error_of([] { ConfigReader("{", "c"); }), "c: is not JSON: line 1, column 2: "));
  CHECK(contains(error_of([] { ConfigReader("", "c"); }), "c: is not JSON: "));
  CHECK(contains(error_of([] { spec::parse_json(std::string(1'000'000, '['), "c"); }),
                 "nested deeper than 64"));
}

TEST_CASE("dtypes have a size and two names") {
  CHECK(spec::dtype_bytes(spec::Dtype::bfloat16) == 2);
  CHECK(spec::dtype_name(spec::Dtype::boolean) == "bool");
  CHECK(spec::parse_dtype("F16") == spec::Dtype::float16);
  CHECK(spec::parse_dtype("float64") == spec::Dtype::float64);
  CHECK_FALSE(spec::parse_dtype("F8").has_value());
}
