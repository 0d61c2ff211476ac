#include "client/cli/files.h"

#include <filesystem>

#include "models/image/png_text.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

namespace fs = std::filesystem;
using namespace troupe::cli;
using namespace troupe::testing;
using List = std::vector<std::string>;

namespace {

/// Begins as a PNG does, with the text that an actor puts into its pictures.
std::string frame(const std::string& what) {
  using namespace std::string_literals;
  const auto head =
      "\x89PNG\r\n\x1a\n"
      "....IHDR.............."
      "....tEXttroupe\0{}...."s;
  return head + what;
}

List names_in(const std::string& folder) {
  List names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("frames go to a folder that is made for them, in one that is there") {
  const Scratch scratch;
  CHECK(is_folder_name("frames/"));
  CHECK_FALSE(is_folder_name("frames"));
  const std::string folder = scratch / "frames/";
  check_frames_folder(folder);
  CHECK_FALSE(fs::exists(folder));
  const auto paths = write_frames(folder, {{frame("a"), frame("b")}});
  CHECK(paths == List{folder + "0000.png", folder + "0001.png"});
  CHECK(read_all(paths[1]) == frame("b"));
  check_frames_folder(folder);
  write_file(scratch / "file", "x");
  CHECK(message_of([&] { write_frames(scratch / "file", {{frame("a")}}); }) ==
        "--output " + (scratch / "file") + ": is not a folder");
  CHECK(has(message_of([&] { check_frames_folder(scratch / "none/frames/"); }), "no folder"));
}

TEST_CASE("a shorter video leaves no frame of the longer one before it, and nothing else goes") {
  const Scratch scratch;
  const std::string folder = scratch / "frames/";
  write_frames(folder, {{frame("a"), frame("b"), frame("c")}});
  for (const char* mine : {"notes.txt", "cover.png", "12.png", "0000.png.bak"})
    write_file(folder + mine, "mine");
  check_frames_folder(folder);
  write_frames(folder, {{frame("d")}});
  CHECK(names_in(folder) == List{"0000.png", "0000.png.bak", "12.png", "cover.png", "notes.txt"});
  CHECK(read_all(folder + "0000.png") == frame("d"));

  write_frames(folder, {{frame("e"), frame("f")}, {frame("g")}});
  CHECK(names_in(folder) == List{"0-0000.png", "0-0001.png", "0000.png.bak", "1-0000.png", "12.png",
                                 "cover.png", "notes.txt"});
}

TEST_CASE("a folder with somebody else's frames is refused before anything is computed") {
  const Scratch scratch;
  const std::string folder = scratch / "camera/";
  fs::create_directory(folder);
  write_file(folder + "0007.png", "\x89PNG\r\n\x1a\n of a camera");
  CHECK(has(message_of([&] { check_frames_folder(folder); }),
            "0007.png there is not a frame that troupe has written"));
  // Neither is it removed by one who writes all the same.
  write_frames(folder, {{frame("a")}});
  CHECK(names_in(folder) == List{"0000.png", "0007.png"});
}
