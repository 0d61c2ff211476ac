#include "models/spec/weight_index.h"

#include <array>
#include <random>

#include "models/spec/json_text.h"
#include "tests/spec/model_folder.h"
#include "tests/support/cpu_seconds.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using spec::WeightIndex;

namespace {

const std::string kTwo =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
    R"("a":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}})";

struct WeightFile {
  Scratch folder;
  std::filesystem::path path = folder.path / "x.safetensors";

  explicit WeightFile(const std::string& bytes) { write_bytes(path, bytes); }
  std::string error() const {
    return error_of([&] { WeightIndex::read_file(path); });
  }
};

std::string error_of_header(const std::string& header, std::size_t data_bytes) {
  return WeightFile(with_prefix(header) + std::string(data_bytes, '\0')).error();
}

std::string entry(const std::string& body) {
  return "{\"t\":{" + body + "}}";
}

}  // namespace

TEST_CASE("a weight index holds names, types, shapes and absolute byte ranges") {
  const WeightFile file(with_prefix(kTwo) + std::string(32, '\0'));
  const auto index = WeightIndex::read_file(file.path);
  REQUIRE(index.tensors().size() == 2);
  const auto& a = index.at("a");
  CHECK(a.dtype == spec::Dtype::bfloat16);
  CHECK(a.shape == std::vector<std::int64_t>{4});
  CHECK(a.begin == 8 + kTwo.size() + 24);
  CHECK(a.bytes() == 8);
  CHECK(index.metadata().at("format") == "pt");
  CHECK(index.bytes() == 32);
  CHECK(index.bytes("b") == 24);
  CHECK(index.find("c") == nullptr);
  CHECK(contains(error_of([&] { index.at("c"); }), "tensor \"c\" is missing"));
}

TEST_CASE("bytes are read as the file that has them, up to a header's length") {
  const std::string bytes = with_prefix(kTwo) + std::string(32, '\0');
  const WeightFile file(bytes);
  CHECK(WeightIndex::of_bytes(bytes, file.path, kTwo.size()) == WeightIndex::read_file(file.path));
  CHECK(contains(error_of([&] { WeightIndex::of_bytes(bytes, "here", kTwo.size() - 1); }),
                 "here: has a header of " + std::to_string(kTwo.size()) + " bytes, at most"));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    CAPTURE(size);
    CHECK(contains(error_of([&] { WeightIndex::of_bytes(bytes.substr(0, size), "here", 1000); }),
                   "here: "));
  }
}

TEST_CASE("scalars and empty tensors are tensors") {
  const WeightFile file(with_prefix(R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                                    R"("e":{"dtype":"F16","shape":[0,9],"data_offsets":[8,8]}})") +
                        std::string(8, '\0'));
  const auto index = WeightIndex::read_file(file.path);
  CHECK(index.at("s").bytes() == 8);
  CHECK(index.at("e").bytes() == 0);
}

TEST_CASE("damaged files are refused with file, tensor and numbers") {
  CHECK(contains(WeightFile("").error(), "has 0 bytes, a header needs at least 8"));
  CHECK(contains(WeightFile(with_prefix(kTwo).substr(0, 60)).error(), "file has 60 bytes"));
  CHECK(contains(WeightFile(with_prefix(kTwo) + std::string(31, '\0')).error(),
                 "tensor \"a\" ends at " + std::to_string(8 + kTwo.size() + 32) + ", file has " +
                     std::to_string(8 + kTwo.size() + 31) + " bytes"));
  CHECK(contains(WeightFile(with_prefix(kTwo) + std::string(33, '\0')).error(), "tensors end at"));
  CHECK(contains(WeightFile(std::string(8, '\xff') + "{}").error(), "is not a safetensors file: "));
  CHECK(contains(error_of_header("[]", 0), "header is not a JSON object"));
  CHECK(contains(error_of_header("{\"t\":", 0), "is not JSON"));
  CHECK(contains(error_of_header(std::string(5000, '['), 0), "nested deeper"));
  CHECK(contains(error_of([] { WeightIndex::read_file("/nowhere/x.safetensors"); }),
                 "/nowhere/x.safetensors: no such file"));
}

TEST_CASE("bad entries are refused") {
  const auto error = [](const std::string& body, std::size_t bytes = 8) {
    return error_of_header(entry(body), bytes);
  };
  CHECK(contains(error(R"("dtype":"F8_E8M0","shape":[8],"data_offsets":[0,8])"),
                 "tensor \"t\" has the unsupported dtype \"F8_E8M0\""));
  CHECK(contains(error(R"("dtype":"float32","shape":[2],"data_offsets":[0,8])"), "dtype"));
  CHECK(contains(error(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
                 "has 8 bytes, its shape [3] of F32 needs 12"));
  CHECK(contains(error(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "natural number"));
  CHECK(contains(error(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "natural number"));
  CHECK(contains(error(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
                 "begins at 8 and ends at 0"));
  CHECK(contains(error(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"),
                 "file has"));
  CHECK(contains(error(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
                 "too large to count"));
  CHECK(contains(error(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), "exactly"));
  CHECK(contains(error(R"("dtype":"F32","shape":[2])"), "exactly"));
  CHECK(contains(error(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "leaving a hole"));
}

TEST_CASE("overlaps and doubled names are refused") {
  const std::string one = R"("dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::string two = R"("dtype":"F32","shape":[2],"data_offsets":[4,12]})";
  CHECK(contains(error_of_header("{\"a\":{" + one + ",\"b\":{" + two + "}", 12),
                 "tensor \"b\" begins at"));
  CHECK(contains(error_of_header("{\"a\":{" + one + ",\"a\":{" + one + "}", 8),
                 "key \"a\" occurs twice"));
}

TEST_CASE("shards are read through their index") {
  Scratch folder;
  const auto shard = [&](const std::string& name, const std::string& tensor) {
    write_sparse_weights(folder.path / name, {{tensor, {2}}}, spec::Dtype::float16);
  };
  const auto error_with = [&](const std::string& map) {
    write_bytes(folder.path / "m.safetensors.index.json", "{\"weight_map\":" + map + "}");
    constexpr std::string_view kStems[] = {"m"};
    return error_of([&] { WeightIndex::read_folder(folder.path, kStems); });
  };
  shard("1.safetensors", "a");
  shard("2.safetensors", "b");
  CHECK(error_with(R"({"a":"1.safetensors","b":"2.safetensors"})") == "");
  CHECK(contains(error_with(R"({"a":"1.safetensors","b":"3.safetensors"})"),
                 "3.safetensors: no such file"));
  CHECK(contains(error_with(R"({"a":"1.safetensors","c":"2.safetensors"})"),
                 "tensor \"c\" is not in its shard 2.safetensors"));
  CHECK(
      contains(error_with(R"({"a":"2.safetensors","b":"1.safetensors"})"), "is not in its shard"));
  CHECK(contains(error_with(R"({"a":"1.safetensors"})") +
                     error_with(R"({"a":"1.safetensors","b":"1.safetensors"})"),
                 "is not in its shard"));
  for (const std::string name : {"../1.safetensors", "/etc/passwd", "..", "", "a/b"}) {
    CHECK(contains(error_with("{\"a\":\"" + name + "\"}"), "not a plain file name"));
  }
  shard("2.safetensors", "a");
  CHECK(contains(error_with(R"({"a":"1.safetensors","b":"2.safetensors"})"), "is both in"));
}

TEST_CASE("a folder without readable weights says what was looked for") {
  Scratch folder;
  constexpr std::string_view kStems[] = {"diffusion_pytorch_model", "model"};
  CHECK(contains(error_of([&] { WeightIndex::read_folder(folder.path, kStems); }),
                 "looked for diffusion_pytorch_model.safetensors, model.safetensors"));
  write_sparse_weights(folder.path / "model.fp16.safetensors", {{"a", {2}}}, spec::Dtype::float16);
  CHECK(WeightIndex::read_folder(folder.path, kStems).contains("a"));
}

TEST_CASE("mutated headers give an index that stays within the file, or one-line errors") {
  const std::string good = with_prefix(kTwo) + std::string(32, '\0');
  Scratch folder;
  const auto path = folder.path / "x.safetensors";
  std::mt19937 random(20260101);
  const auto pick = [&random](std::size_t below) { return random() % below; };
  constexpr std::array<const char*, 8> kPieces = {
      "9999999999999999999", "-1", "null", "[[[[", "\"", "}", ",", "1e400"};
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string bytes = good;
    for (std::size_t edits = 1 + pick(4); edits > 0; --edits) {
      const std::size_t at = pick(bytes.size());
      switch (pick(5)) {
        case 0:
          bytes[at] = static_cast<char>(pick(256));
          break;
        case 1:
          bytes.erase(at, 1 + pick(8));
          break;
        case 2:
          bytes.insert(at, kPieces[pick(kPieces.size())]);
          break;
        case 3:
          bytes.resize(at + 1);
          break;
        default:
          bytes[pick(8)] ^= static_cast<char>(1U << pick(8));
      }
    }
    write_bytes(path, bytes);
    try {
      const auto index = WeightIndex::read_file(path);
      for (const auto& tensor : index.tensors()) {
        CHECK(tensor.begin <= tensor.end);
        CHECK(tensor.end <= bytes.size());
      }
    } catch (const std::runtime_error& error) {
      ++refused;
      CHECK(contains(error.what(), path.string()));
      CHECK(!contains(error.what(), "\n"));
    }
  }
  CHECK(refused > 300);
}

namespace {

std::string many_empty(std::size_t tensors) {
  std::string header;
  for (std::size_t i = 0; i < tensors; ++i)
    header += (i == 0 ? "{\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  return with_prefix(header + "}");
}

}  // namespace

TEST_CASE("the time that a header takes grows with its length, not with its square") {
  const auto cost = [](std::size_t tensors) {
    const WeightFile file(many_empty(tensors));
    return testing::cpu_seconds([&] { CHECK(file.error().empty()); });
  };
  CHECK(cost(32'000) < 8 * cost(8'000));  // 16 times as long, were it the square
}

TEST_CASE("tensors and headers of a component are bounded, over all of its shards") {
  CHECK(contains(WeightFile(many_empty(65'537)).error(),
                 "x.safetensors: has more than 65536 tensors"));
  CHECK(WeightFile(many_empty(65'536)).error().empty());
  const Scratch folder;
  nlohmann::json map;
  const std::string blank = "{\"__metadata__\":{}" + std::string(60'000'000, ' ');
  for (const char* name : {"a", "b"}) {
    map[name] = std::string(name) + ".safetensors";
    write_bytes(folder.path / (std::string(name) + ".safetensors"),
                with_prefix(blank + ",\"" + name +
                            R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})"));
  }
  const auto index =
      folder.file("x.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  CHECK(contains(error_of([&] { WeightIndex::read_sharded(index); }),
                 "b.safetensors: has a header of 60000072 bytes: with those of the shards before"));
}

TEST_CASE("a document is read in time that grows with its length, and not without end") {
  const auto parse = [](const std::string& text) {
    return error_of([&] { spec::parse_json(text, "x.json"); });
  };
  const auto deep = [](std::size_t count) {
    std::string text = "[0";
    for (std::size_t i = 0; i < count; ++i)
      text += R"(,{"a":[{"b":{}},[]]})";
    return text + "]";
  };
  const auto cost = [&](std::size_t count) {
    const auto text = deep(count);
    return testing::cpu_seconds([&] { CHECK(parse(text).empty()); });
  };
  CHECK(cost(64'000) < 8 * cost(16'000));
  CHECK(contains(parse("[" + std::string(2'000'000, '[')), "nested deeper than 64"));
  std::string zeros = "[0";
  for (int i = 0; i < 1'000'000; ++i)
    zeros += ",0";
  CHECK(contains(parse(zeros + "]"), "x.json: has more than 1000000 values"));
  CHECK(contains(parse(R"({"a":{"b":1},"a":2})"), "key \"a\" occurs twice"));
  CHECK(contains(parse(R"([1,{"a":[1,2}])"), "x.json: is not JSON: "));
  CHECK(spec::parse_json(R"({"a":[1,-2,3.5,null,true,"x",{}],"b":{"c":[[]]}})", "x")["a"][5] ==
        "x");
}
