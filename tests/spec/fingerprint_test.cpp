#include "models/spec/fingerprint.h"

#include <fstream>
#include <set>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

namespace fs = std::filesystem;
using troupe::spec::fingerprint;
using troupe::testing::Scratch;

namespace {

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

/// Times of files move in ticks of the system's clock.
void wait_for_a_tick() {
  std::this_thread::sleep_for(std::chrono::milliseconds(15));
}

}  // namespace

TEST_CASE("a folder's fingerprint stays while nothing that is read changes") {
  const Scratch scratch;
  const fs::path model = scratch.path;
  write(model / "model_index.json", "{}");
  write(model / "transformer/config.json", "{}");
  write(model / "transformer/weights.safetensors", "0123456789");
  const auto before = fingerprint(model);
  CHECK(before != 0);
  CHECK(fingerprint(model) == before);
  write(model / "transformer/notes.txt", "of no concern");
  write(model / "picture.png", "nor this");
  write(model / "transformer/deeper/config.json", "nor this");
  CHECK(fingerprint(model) == before);
}

TEST_CASE("a folder's fingerprint tells every way to replace a checkpoint in place") {
  const Scratch scratch;
  const fs::path model = scratch.path;
  const fs::path weights = model / "transformer/weights.safetensors";
  write(model / "model_index.json", "{}");
  write(model / "transformer/config.json", "{}");
  write(weights, "0123456789");
  std::set<std::uint64_t> seen{fingerprint(model)};
  const auto changed = [&](const char* how) {
    INFO(how);
    CHECK(seen.insert(fingerprint(model)).second);
    wait_for_a_tick();
  };
  wait_for_a_tick();
  write(weights, "9876543210");
  changed("other bytes, same size");
  write(model / "tokenizer/merges.txt", "a b");
  changed("a list of merges");
  write(model / "new", "abcdefghij");
  fs::last_write_time(model / "new", fs::last_write_time(weights));
  fs::rename(model / "new", weights);
  changed("another file of the same size and time in its place");
  const auto time = fs::last_write_time(weights);
  write(weights, "jihgfedcba");
  fs::last_write_time(weights, time);
  changed("other bytes, same size, the time set back");
  write(weights, "short");
  changed("another size");
  write(model / "transformer/more.safetensors", "");
  changed("a file more");
  fs::rename(model / "transformer/more.safetensors", model / "transformer/other.safetensors");
  changed("another name");
  fs::remove(model / "transformer/config.json");
  changed("a file less");
  write(model / "model_index.json", "{ }");
  changed("another index");
  fs::remove(model / "model_index.json");
  changed("no model any more");
}

TEST_CASE("a link that points elsewhere now is another model") {
  const Scratch scratch;
  write(scratch.path / "a.safetensors", "0123456789");
  write(scratch.path / "b.safetensors", "0123456789");
  write(scratch.path / "model/model_index.json", "{}");
  fs::create_directory(scratch.path / "model/vae");
  const fs::path link = scratch.path / "model/vae/model.safetensors";
  fs::create_symlink(scratch.path / "a.safetensors", link);
  const auto before = fingerprint(scratch.path / "model");
  fs::remove(link);
  fs::create_symlink(scratch.path / "b.safetensors", link);
  CHECK(fingerprint(scratch.path / "model") != before);
  CHECK(fingerprint(scratch.path / "nowhere") != before);
}
