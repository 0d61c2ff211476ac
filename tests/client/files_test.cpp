#include "client/cli/files.h"
#include "base/files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "client/cli/verb.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::cli;
using troupe::testing::message_of;
using troupe::testing::Scratch;
namespace fs = std::filesystem;

TEST_CASE("where pictures go") {
  using Paths = std::vector<std::string>;
  CHECK(picture_paths("out.png", 1) == Paths{"out.png"});
  CHECK(picture_paths("a/out.png", 3) == Paths{"a/out-0.png", "a/out-1.png", "a/out-2.png"});
  CHECK(picture_paths("cat-{}-x.png", 2) == Paths{"cat-0-x.png", "cat-1-x.png"});
  CHECK(picture_paths("cat{}.png", 1) == Paths{"cat0.png"});
  CHECK(picture_paths("out", 1) == Paths{"out.png"});
  CHECK(picture_paths("out", 2) == Paths{"out-0.png", "out-1.png"});
  CHECK_THROWS_AS(picture_paths("out.jpg", 1), UsageError);
  CHECK_THROWS_AS(picture_paths("folder/", 1), UsageError);
  CHECK_THROWS_AS(picture_paths("", 1), UsageError);
  CHECK(message_of([] { picture_paths("/dev/null", 1); }) ==
        "--output \"/dev/null\": it is a device or a pipe, not a file");
}

TEST_CASE("a file is replaced as a whole, and nothing else is left in its folder") {
  const Scratch scratch;
  const std::string path = scratch / "out.png";
  write_file(path, "first");
  write_file(path, std::string("sec\0nd", 6));
  CHECK(read_file(path, 100) == std::string("sec\0nd", 6));
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
}

TEST_CASE("a write that fails leaves the old file and nothing half-written") {
  const Scratch scratch;
  fs::create_directory(scratch.path / "folder.png");
  CHECK(message_of([&] {
          write_file(scratch / "folder.png", "x");
        }).find("folder.png: cannot be written") != std::string::npos);
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
  CHECK(message_of([&] { write_file("/dev/full/x.png", "x"); }).find("/dev/full/x.png") == 0);
}

TEST_CASE("what cannot be written is known beforehand, with the reason") {
  const Scratch scratch;
  fs::create_directory(scratch.path / "folder.png");
  std::ofstream(scratch / "file") << "x";
  CHECK_NOTHROW(check_writable("--output", scratch / "out.png"));
  CHECK(fs::is_empty(scratch.path) == false);
  CHECK_FALSE(fs::exists(scratch / "out.png"));
  CHECK(message_of([&] {
          check_writable("--output", scratch / "none/out.png");
        }).find("no folder") != std::string::npos);
  CHECK(message_of([&] {
          check_writable("--output", scratch / "file/out.png");
        }).find("--output ") == 0);
  CHECK(message_of([&] {
          check_writable("--output", scratch / "folder.png");
        }).find("it is a folder") != std::string::npos);
  CHECK(message_of([&] { check_writable("--output", "/proc/out.png"); }).find("/proc") !=
        std::string::npos);
}

TEST_CASE("a pipe or a device is not replaced by a file") {
  const Scratch scratch;
  const std::string pipe = scratch / "out.png";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  fs::create_symlink(pipe, scratch / "link.png");
  for (const auto& path : {pipe, scratch / "link.png"}) {
    CHECK(message_of([&] { check_writable("--output", path); }).find("not a file") !=
          std::string::npos);
    CHECK(message_of([&] { write_file(path, "x"); }).find("not a file") != std::string::npos);
    CHECK(message_of([&] { read_file(path, 10); }).find("is not a file") != std::string::npos);
  }
  CHECK(fs::is_fifo(pipe));
}

TEST_CASE("reading names the file and the reason") {
  const Scratch scratch;
  CHECK(message_of([&] { read_file(scratch / "none", 10); }).find("none: No such file") !=
        std::string::npos);
  CHECK(message_of([&] { read_file(scratch.path.string(), 10); }).find("is not a file") !=
        std::string::npos);
  write_file(scratch / "big", "0123456789A");
  CHECK(message_of([&] { read_file(scratch / "big", 10); }).find("has 11 bytes") !=
        std::string::npos);
}

TEST_CASE("several videos are told apart by number") {
  CHECK(picture_paths("clip.apng", 2) == std::vector<std::string>{"clip-0.apng", "clip-1.apng"});
  CHECK(picture_paths("clip.mp4", 2) == std::vector<std::string>{"clip-0.mp4", "clip-1.mp4"});
}

TEST_CASE("a file's ending says what is written") {
  using models::ClipFormat;
  for (const char* name : {"a", "a.png", "a.PNG", "a.apng", "a.b/c"})
    CHECK(clip_format(name) == ClipFormat::apng);
  CHECK(clip_format("a.webm") == ClipFormat::webm);
  CHECK(clip_format("a.b/C.MP4") == ClipFormat::mp4);
  for (const char* name : {"a.mov", "a.safetensors", "a."})
    CHECK(clip_format(name) == std::nullopt);
}
