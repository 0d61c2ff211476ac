#include "models/spec/weight_index.h"
#include "tests/fuzz/targets/all.h"
#include "tests/spec/gguf_bytes.h"
#include "tests/spec/torch_bytes.h"
#include "tests/support/scratch.h"

namespace troupe::fuzz {
namespace {

void check(const spec::WeightIndex& index) {
  for (const auto& tensor : index.tensors()) {
    require(tensor.begin <= tensor.end, "a tensor's bytes do not end before they begin");
    require(tensor.end <= std::filesystem::file_size(tensor.file), "a tensor lies in its file");
    std::uint64_t elements = 1;
    for (const auto extent : tensor.shape) {
      require(extent >= 0, "no extent is negative");
      elements *= static_cast<std::uint64_t>(extent);
    }
    require(elements == 0 || tensor.elements() == elements, "bytes match the shape");
  }
}

}  // namespace

void run_safetensors(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("x.safetensors", bytes);
  refusable([&] { check(spec::WeightIndex::read_file(file)); });
}

std::vector<std::string> seeds_safetensors() {
  return {
      file_of("{}", 0), file_of(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", 24),
      file_of(
          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"I64","shape":[],"data_offsets":[4,12]}})",
          12),
      file_of(R"({"a":{"dtype":"F16","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", 0)};
}

void run_gguf(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("x.gguf", bytes);
  refusable([&] { check(spec::WeightIndex::read_file(file)); });
}

std::vector<std::string> seeds_gguf() {
  using namespace testing;
  return {gguf_file({}, {}, 0),
          gguf_file(
              {gguf_text("general.architecture", "flux"), gguf_number("general.alignment", 64),
               gguf_texts("tokens", {"a", "b"}), gguf_shape("comfy.gguf.orig_shape.a", {1, 2, 64})},
              {gguf_tensor("a", {64, 2}, 8, 0), gguf_tensor("b", {3}, 0, 192)}, 204)};
}

void run_torch(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("x.ckpt", bytes);
  refusable([&] { check(spec::WeightIndex::read_file(file)); });
  // The pickle alone, which is most of what can go wrong.
  const auto inner = scratch.file("y.ckpt", testing::zip_of({{"a/data.pkl", std::string(bytes)},
                                                             {"a/data/0", std::string(16, '\0')}}));
  refusable([&] { check(spec::WeightIndex::read_file(inner)); });
}

std::vector<std::string> seeds_torch() {
  using namespace testing;
  const std::string pickle = pickle_of_tensor();
  return {pickle, pickle_of_tensor(1, 2),
          zip_of({{"archive/data.pkl", pickle},
                  {"archive/byteorder", "little"},
                  {"archive/data/0", std::string(16, '\0')}}),
          "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}." +
              pickle + "\x80\x02]" + pickled("0") + "a." + little(std::uint64_t{4}) +
              std::string(16, '\0')};
}

void run_shard_index(std::string_view bytes) {
  static const testing::Scratch scratch;
  static const bool made = [] {
    scratch.file("part-1.safetensors",
                 file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
    scratch.file("part-2.safetensors",
                 file_of(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
    return true;
  }();
  static_cast<void>(made);
  const auto file = scratch.file("x.safetensors.index.json", bytes);
  refusable([&] { check(spec::WeightIndex::read_sharded(file)); });
}

std::vector<std::string> seeds_shard_index() {
  return {
      R"({"metadata":{"total_size":12},"weight_map":{"a":"part-1.safetensors","b":"part-2.safetensors"}})",
      R"({"weight_map":{}})", R"({"weight_map":{"a":"../part-1.safetensors"}})"};
}

}  // namespace troupe::fuzz
