#include "models/safetensors.h"

#include <ATen/Functions.h>

#include <limits>

#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using models::WeightStore;

namespace {

std::map<std::string, at::Tensor> sample_tensors() {
  return {{"a", at::arange(6, at::kFloat).view({2, 3})},
          {"b", at::arange(5, at::kLong)},
          {"c", at::arange(4, at::kFloat).to(at::kBFloat16)},
          {"d", at::arange(3, at::kFloat).to(at::kHalf)},
          {"e", at::empty({0, 4}, at::kFloat)},
          {"f", at::scalar_tensor(2.5, at::kDouble)},
          {"g", at::ones({3}, at::kBool)}};
}

WeightStore open(const std::filesystem::path& file) {
  return WeightStore(spec::WeightIndex::read_file(file));
}

}  // namespace

TEST_CASE("saved tensors load again, with type, shape and metadata") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  const auto tensors = sample_tensors();
  models::save_safetensors(file, tensors, {{"seed", "7"}});
  const auto loaded = models::load_safetensors(file);
  REQUIRE(loaded.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK((loaded.at(name).scalar_type() == tensor.scalar_type()));
    CHECK(at::equal(loaded.at(name), tensor));
  }
  CHECK(spec::WeightIndex::read_file(file).metadata().at("seed") == "7");
}

TEST_CASE("strided tensors are saved as they read") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  const at::Tensor turned = at::arange(6, at::kFloat).view({2, 3}).t();
  models::save_safetensors(file, {{"t", turned}});
  CHECK(at::equal(models::load_safetensors(file).at("t"), turned));
}

TEST_CASE("a file is replaced as a whole or not at all") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  models::save_safetensors(file, {{"t", at::ones({2})}});
  CHECK(contains(error_of([&] {
                   models::save_safetensors(file, {{"t", at::ones({2}).to(at::kComplexFloat)}});
                 }),
                 "no safetensors counterpart"));
  CHECK(at::equal(models::load_safetensors(file).at("t"), at::ones({2})));
  models::save_safetensors(file, {{"t", at::zeros({3})}});
  CHECK(at::equal(models::load_safetensors(file).at("t"), at::zeros({3})));
  const auto nowhere = folder.path / "none" / "x.safetensors";
  CHECK(contains(error_of([&] {
                   models::save_safetensors(nowhere, {{"t", at::ones({2})}});
                 }),
                 nowhere.string() + ": No such file or directory"));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder.path)) {
    ++files;
  }
  CHECK(files == 1);
}

TEST_CASE("a view needs no copy and outlives its store") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  models::save_safetensors(file, sample_tensors());
  at::Tensor view;
  {
    const WeightStore store = open(file);
    view = store.get("a", {2, 3});
    CHECK(view.const_data_ptr() == store.get("a").const_data_ptr());
    CHECK(store.get("a", {2, 3}, at::kFloat).const_data_ptr() == view.const_data_ptr());
    store.release("a");
  }
  std::filesystem::remove(file);
  CHECK(at::equal(view, at::arange(6, at::kFloat).view({2, 3})));
}

TEST_CASE("data that the file does not align is copied") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  std::string header = R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  while (header.size() % 4 != 1)
    header += ' ';
  const float values[] = {1.5F, -2.0F};
  write_bytes(file, with_prefix(header) + std::string(reinterpret_cast<const char*>(values), 8));
  const at::Tensor read = open(file).get("t");
  CHECK(reinterpret_cast<std::uintptr_t>(read.const_data_ptr()) % 4 == 0);
  CHECK(at::equal(read, at::tensor({1.5F, -2.0F})));
}

TEST_CASE("shape, name and dtype are checked on the way") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  models::save_safetensors(file, sample_tensors());
  const WeightStore store = open(file);
  CHECK(error_of([&] {
          store.get("a", {3, 2});
        }) ==
        "[load_safetensors] " + file.string() + ": tensor \"a\" has shape [2, 3], expected [3, 2]");
  CHECK(contains(error_of([&] { store.get("z"); }), "tensor \"z\" is missing"));
  const at::Tensor half = store.get("a", {2, 3}, at::kHalf);
  CHECK((half.scalar_type() == at::kHalf));
  CHECK(half[1][2].item<float>() == 5.0F);
  CHECK(at::equal(store.get("c", {4}, at::kFloat), at::arange(4, at::kFloat)));
}

TEST_CASE("values that are not finite are named by tensor and index") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (double value :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity()}) {
      at::Tensor bad = at::ones({3, 1000}, at::kDouble);
      bad[1][7] = value;
      bad[2][9] = value;
      models::save_safetensors(file, {{"w", bad.to(type)}});
      const WeightStore store = open(file);
      const std::string error = error_of([&] { store.get("w", {3, 1000}, at::kFloat); });
      CHECK(contains(error, file.string() + ": tensor \"w\" [1, 7] is"));
      CHECK(error_of([&] {
              store.get("w", {3, 1000}, at::kFloat, at::kCPU, models::FiniteCheck::off);
            }) == "");
    }
  }
  at::Tensor large = at::ones({4});
  large[3] = 1e6;
  models::save_safetensors(file, {{"w", large}});
  CHECK(error_of([&] { open(file).get("w", {4}, at::kBFloat16); }) == "");
  CHECK(contains(error_of([&] { open(file).get("w", {4}, at::kHalf); }),
                 "converted to float16, " + file.string() + ": tensor \"w\" [3] is inf"));
}

TEST_CASE("a file that shrank after its index was read is refused") {
  Scratch folder;
  const auto file = folder.path / "x.safetensors";
  models::save_safetensors(file, {{"t", at::ones({1000})}});
  const auto index = spec::WeightIndex::read_file(file);
  std::filesystem::resize_file(file, 1000);
  CHECK(contains(error_of([&] { WeightStore{index}; }), "file has 1000 bytes"));
}

TEST_CASE("sharded and half-precision fixtures hold the same model") {
  const auto folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/tiny-variants";
  constexpr std::string_view kStems[] = {"diffusion_pytorch_model"};
  const auto read = [&](const char* name) {
    return WeightStore(spec::WeightIndex::read_folder(folder / name, kStems));
  };
  const WeightStore whole = read("float32");
  const WeightStore sharded = read("sharded");
  CHECK(sharded.index().files().size() == 2);
  REQUIRE(sharded.index().tensors().size() == whole.index().tensors().size());
  const WeightStore brain = read("bfloat16");
  const WeightStore half = read("float16");
  for (const auto& entry : whole.index().tensors()) {
    const at::Tensor value = whole.get(entry.name);
    INFO(entry.name);
    CHECK(at::equal(sharded.get(entry.name, entry.shape), value));
    CHECK(at::allclose(brain.get(entry.name, entry.shape, at::kFloat), value, 1e-2, 1e-3));
    CHECK(at::allclose(half.get(entry.name, entry.shape, at::kFloat), value, 1e-3, 1e-4));
  }
}

TEST_CASE("a file that shrinks while it is mapped reads as zeros, and is named") {
  Scratch folder;
  const auto file = folder.path / "part" / "x.safetensors";
  std::filesystem::create_directories(file.parent_path());
  models::save_safetensors(file, {{"t", at::ones({1 << 16})}});
  const auto before = models::mappings_made();
  {
    const auto store = open(file);
    const at::Tensor view = store.get("t");
    CHECK_NOTHROW(models::require_whole_files(before, folder.path));
    std::filesystem::resize_file(file, 8192);
    CHECK(view[0].item<float>() == 1);
    CHECK(view[-1].item<float>() == 0);
    CHECK(contains(error_of([&] { models::require_whole_files(before, folder.path); }),
                   file.string() + ": became shorter while it was in use"));
    CHECK_NOTHROW(models::require_whole_files(models::mappings_made(), folder.path));
    CHECK_NOTHROW(models::require_whole_files(before, folder.path / "par"));
  }
  CHECK_NOTHROW(models::require_whole_files(before, folder.path));
}
