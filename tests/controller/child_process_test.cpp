#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"
#include "controller/hosts/process.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;

namespace {

/// Returns the lines that a child writes until its end.
std::vector<std::string> lines_of(cluster::ProcessOptions options) {
  std::vector<std::string> lines;
  boost::asio::io_context io;
  options.on_line = [&](const std::string& line) { lines.push_back(line); };
  bool ended = false;
  cluster::Process process(io, options, [&](const cluster::ExitCause&) { ended = true; });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!ended && std::chrono::steady_clock::now() < until)
    io.run_one_for(std::chrono::seconds(1));
  CHECK(ended);
  return lines;
}

}  // namespace

TEST_CASE("a child has none of our descriptors but the one that is meant for it") {
  // As libraries open them that do not think of children.
  std::vector<FileHandle> careless;
  careless.emplace_back(open("/dev/null", O_RDONLY));
  careless.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
  careless.emplace_back(memfd_create("careless", 0));
  const FileHandle meant(memfd_create("meant", MFD_CLOEXEC));
  REQUIRE(write(meant.get(), "for you\n", 8) == 8);
  // The shell's own `for` opens nothing but the folder, while it reads it.
  const std::string list =
      "for each in 0 1 2 3 4 5 6 7 8 9 1? 2? 3? 4? 5?; do "
      "test -e /proc/$$/fd/$each && echo -n \"$each \"; done; echo";
  const std::string all = "cd /proc/$$/fd; " + list;
  cluster::ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", all};
  CHECK(lines_of(options) == std::vector<std::string>{"0 1 2 "});
  options.inherited = meant.get();
  options.arguments = {"-c", "cat /proc/$$/fd/3; " + all};
  CHECK(lines_of(options) == std::vector<std::string>{"for you", "0 1 2 3 "});
}

TEST_CASE("a child of a process whose folder was deleted is somewhere") {
  const auto here = std::filesystem::current_path();
  std::filesystem::path gone;
  {
    const testing::Scratch scratch;
    gone = scratch.path;
    std::filesystem::current_path(gone);
  }
  cluster::ProcessOptions options;
  options.program = "/bin/pwd";
  const auto lines = lines_of(options);
  std::filesystem::current_path(here);
  CHECK(lines == std::vector<std::string>{"/"});
}

TEST_CASE("a log has a bound, which it says, and its process goes on") {
  const testing::Scratch scratch;
  cluster::ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", "i=0; while test $i -lt 500; do echo 0123456789; i=$((i+1)); done"};
  options.log = scratch / "log";
  options.log_bytes = 1000;
  CHECK(lines_of(options).size() == 500);
  const auto size = std::filesystem::file_size(options.log);
  CHECK(size < 1200);
  // A process that comes into its place writes no more either.
  CHECK(lines_of(options).size() == 500);
  CHECK(std::filesystem::file_size(options.log) < size + 200);
}

TEST_CASE("a log is never a link or a pipe that lies in its place") {
  const testing::Scratch scratch;
  cluster::ProcessOptions options;
  options.program = "/bin/true";
  std::filesystem::create_symlink(scratch / "of another", scratch / "link");
  REQUIRE(mkfifo((scratch / "pipe").c_str(), 0600) == 0);  // that nobody reads
  boost::asio::io_context io;
  for (const std::string name : {"link", "pipe"}) {
    options.log = scratch / name;
    CHECK(testing::has(testing::message_of([&] { cluster::Process(io, options, {}); }),
                       options.log.string() + " cannot be opened for its output"));
  }
  CHECK_FALSE(std::filesystem::exists(scratch / "of another"));
}

TEST_CASE("what a process has started ends with it") {
  cluster::ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"-c", "sleep 1000 & echo $!"};
  const auto lines = lines_of(options);
  REQUIRE(lines.size() == 1);
  const auto stat = std::filesystem::path("/proc") / lines.front() / "stat";
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  // Whoever has it now reaps it, or nobody does.
  const auto lives = [&] {
    const auto text = testing::read_all(stat);
    return !text.empty() && !testing::has(text, ") Z ");
  };
  while (lives() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_FALSE(lives());
}
