#include "models/spec/gguf.h"

#include <cstring>
#include <string>
#include <vector>

#include "tests/spec/gguf_bytes.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// The error for a file that has these bytes behind its first keys and tensors.
std::string error_of_file(const std::string& bytes) {
  Scratch folder;
  const auto file = folder.path / "x.gguf";
  write_bytes(file, bytes);
  return error_of([&] { spec::read_gguf(file); });
}

std::string with_tensors(const std::vector<std::string>& tensors, std::size_t data_bytes) {
  return gguf_file({}, tensors, data_bytes);
}

}  // namespace

TEST_CASE("a GGUF file's tensors have types, shapes and places") {
  Scratch folder;
  const auto file = folder.path / "x.gguf";
  write_bytes(file,
              gguf_file({gguf_text("general.architecture", "flux"),
                         gguf_number("general.alignment", 64), gguf_texts("tokens", {"a", "b"})},
                        {gguf_tensor("a", {64, 2}, 8, 0), gguf_tensor("b", {3}, 0, 192)}, 204));
  const auto contents = spec::read_gguf(file);
  REQUIRE(contents.tensors.size() == 2);
  CHECK(contents.metadata.at("general.architecture") == "flux");
  const auto& a = contents.tensors[0];
  CHECK(a.dtype == spec::Dtype::q8_0);
  CHECK(a.shape == std::vector<std::int64_t>{2, 64});
  CHECK(a.bytes() == 4 * 34);
  CHECK(a.elements() == 128);
  CHECK(a.begin % 64 == 0);
  CHECK(contents.tensors[1].begin == a.begin + 192);
  // The same through what reads any file of weights.
  CHECK(spec::WeightIndex::read_file(file).at("b").dtype == spec::Dtype::float32);
}

TEST_CASE("a shape that ComfyUI's converter has kept aside is given back") {
  Scratch folder;
  const auto file = folder.path / "x.gguf";
  const auto shape = gguf_shape("comfy.gguf.orig_shape.a", {1, 2, 32});
  write_bytes(file, gguf_file({shape}, {gguf_tensor("a", {64}, 8, 0)}, 68));
  CHECK(spec::read_gguf(file).tensors[0].shape == std::vector<std::int64_t>{1, 2, 32});
  write_bytes(file, gguf_file({shape}, {gguf_tensor("a", {32}, 8, 0)}, 34));
  CHECK(contains(error_of([&] { spec::read_gguf(file); }), "and its key says [1, 2, 32]"));
}

TEST_CASE("broken GGUF files are refused with what and where") {
  const std::string good = with_tensors({gguf_tensor("a", {4}, 0, 0)}, 16);
  CHECK(error_of_file(good).empty());
  for (std::size_t cut = 4; cut < good.size(); ++cut) {
    CAPTURE(cut);
    CHECK(!error_of_file(good.substr(0, cut)).empty());
  }
  CHECK(contains(error_of_file("GGML" + good.substr(4)), "is no GGUF file"));
  auto version = good;
  version[4] = 1;
  CHECK(contains(error_of_file(version), "version 1 (read are 2 and 3"));
  CHECK(contains(error_of_file(with_tensors({gguf_tensor("a", {32}, 16, 0)}, 64)),
                 "ggml's type 16, which is not read (read are float32, float16, q4_0"));
  CHECK(contains(error_of_file(with_tensors({gguf_tensor("a", {33}, 8, 0)}, 64)),
                 "rows of 33 elements, and q8_0 keeps 32 together"));
  CHECK(contains(error_of_file(with_tensors({gguf_tensor("a", {8}, 0, 0)}, 16)), "file has"));
  CHECK(contains(
      error_of_file(with_tensors({gguf_tensor("a", {8}, 0, 0), gguf_tensor("b", {8}, 0, 16)}, 48)),
      "tensor \"b\" begins at"));
  CHECK(contains(
      error_of_file(with_tensors({gguf_tensor("a", {4}, 0, 0), gguf_tensor("a", {4}, 0, 16)}, 32)),
      "has the tensor \"a\" twice"));
  CHECK(contains(
      error_of_file(with_tensors({gguf_tensor("a", {1ULL << 40U, 1ULL << 40U}, 0, 0)}, 16)),
      "has the shape"));
  CHECK(contains(error_of_file(gguf_file({gguf_number("general.alignment", 3)}, {}, 0)),
                 "general.alignment is 3, which is no power of two"));
  CHECK(contains(error_of_file(gguf_file({gguf_text("k", "1"), gguf_text("k", "2")}, {}, 0)),
                 "has the key \"k\" twice"));
}

TEST_CASE("a component's folder may have one file of weights of any name") {
  Scratch folder;
  constexpr std::string_view kStems[] = {"model"};
  const auto read = [&] { return spec::WeightIndex::read_folder(folder.path, kStems); };
  CHECK(contains(error_of(read), "a single safetensors or GGUF file of any name"));
  write_bytes(folder.path / "flux1-dev-Q8_0.gguf", with_tensors({gguf_tensor("a", {4}, 0, 0)}, 16));
  CHECK(read().contains("a"));
  write_bytes(folder.path / "other.safetensors", with_prefix("{}"));
  CHECK(contains(error_of(read), "has flux1-dev-Q8_0.gguf and other.safetensors"));
}
