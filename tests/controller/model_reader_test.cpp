#include "controller/service/model_reader.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <system_error>
#include <thread>

#include "controller/service/side_thread.h"
#include "tests/support/doctest.h"
#include "tests/support/hub_cache.h"
#include "tests/support/scratch.h"

using namespace troupe;
using service::ModelReader;
using service::ModelReading;

namespace {

bool run_until(boost::asio::io_context& io, const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto work = boost::asio::make_work_guard(io);
  io.restart();
  while (!holds() && std::chrono::steady_clock::now() < end)
    io.run_one_for(std::chrono::milliseconds(20));
  return holds();
}

/// A folder with a file that counts for its fingerprint.
struct Folder {
  Folder() { write("1"); }
  void write(const std::string& text) const { std::ofstream(scratch / "model_index.json") << text; }
  std::string path() const { return scratch.path.string(); }
  testing::Scratch scratch;
};

spec::ModelSpec spec_of(const std::string& folder) {
  spec::ModelSpec spec;
  spec.folder = folder;
  return spec;
}

void ask(ModelReader& reader, const std::string& folder, ModelReader::Handler handler) {
  reader.read(folder, {}, std::chrono::seconds(60), std::move(handler));
}

}  // namespace

TEST_CASE("models are read beside the loop, those of a folder in the order asked for") {
  boost::asio::io_context io{1};
  std::promise<void> go;
  auto gone = go.get_future().share();
  const auto loop = std::this_thread::get_id();
  std::atomic<bool> on_loop = false;
  ModelReader reader(io, [&](const std::string& folder) {
    if (std::this_thread::get_id() == loop) on_loop = true;
    gone.wait_for(std::chrono::seconds(60));
    return spec_of(folder);
  });
  std::vector<int> got;
  for (int i = 0; i < 8; ++i)
    ask(reader, i == 3 ? "other" : "same", [&got, i](const ModelReading&) {
      if (i != 3) got.push_back(i);
    });
  CHECK(reader.waiting() == 8);
  bool turned = false;
  boost::asio::post(io, [&] { turned = true; });
  CHECK(run_until(io, [&] { return turned; }));
  CHECK(got.empty());
  go.set_value();
  CHECK(run_until(io, [&] { return reader.waiting() == 0; }));
  CHECK(got == std::vector<int>{0, 1, 2, 4, 5, 6, 7});
  CHECK_FALSE(on_loop);
}

TEST_CASE("who reads a good folder does not wait for those who read bad ones") {
  boost::asio::io_context io{1};
  std::promise<void> go;
  auto gone = go.get_future().share();
  ModelReader reader(io, [&](const std::string& folder) {
    if (folder.starts_with("bad")) gone.wait_for(std::chrono::seconds(60));
    return spec_of(folder);
  });
  std::vector<std::string> said;
  const auto say = [&](const ModelReading& reading) {
    said.push_back(reading.late ? reading.error : reading.model->folder.string());
  };
  // The same bad folder takes one thread, however often it is asked for.
  for (int i = 0; i < 10; ++i)
    reader.read("bad", {}, std::chrono::seconds(2), say);
  ask(reader, "bad too", say);
  ask(reader, "good", say);
  REQUIRE(run_until(io, [&] { return !said.empty(); }));
  CHECK(said == std::vector<std::string>{"good"});
  REQUIRE(run_until(io, [&] { return said.size() == 11; }));
  CHECK(said.back() == "[read_model] bad: was not read in time");
  CHECK(reader.waiting() == 1);
  ask(reader, "good", say);
  REQUIRE(run_until(io, [&] { return said.size() == 12; }));
  CHECK(said.back() == "good");
  go.set_value();
  REQUIRE(run_until(io, [&] { return reader.waiting() == 0; }));
  CHECK(said.back() == "bad too");
  ask(reader, "bad", say);
  REQUIRE(run_until(io, [&] { return said.size() == 14; }));
  CHECK(said.back() == "bad");
}

TEST_CASE("four folders are read at once, and no more") {
  boost::asio::io_context io{1};
  std::promise<void> go;
  auto gone = go.get_future().share();
  std::atomic<int> inside = 0;
  ModelReader reader(io, [&](const std::string& folder) {
    ++inside;
    gone.wait_for(std::chrono::seconds(60));
    return spec_of(folder);
  });
  int got = 0;
  for (int i = 0; i < 9; ++i)
    ask(reader, std::to_string(i), [&](const ModelReading&) { ++got; });
  CHECK(run_until(io, [&] { return inside == 4; }));
  io.run_for(std::chrono::milliseconds(100));
  CHECK(inside == 4);
  go.set_value();
  CHECK(run_until(io, [&] { return got == 9; }));
}

TEST_CASE("a folder is read again when it has changed, and only then") {
  boost::asio::io_context io{1};
  const Folder folder;
  std::atomic<int> reads = 0;
  ModelReader reader(io, [&](const std::string& name) {
    ++reads;
    return spec_of(name);
  });
  const auto look = [&] {
    std::optional<ModelReading> got;
    ask(reader, folder.path(), [&](const ModelReading& reading) { got = reading; });
    REQUIRE(run_until(io, [&] { return got.has_value(); }));
    REQUIRE(got->model != nullptr);
    return *got;
  };
  const auto first = look();
  CHECK(first.fingerprint != 0);
  CHECK(look().model == first.model);
  CHECK(reads == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(15));
  folder.write("2");
  const auto second = look();
  CHECK(reads == 2);
  CHECK(second.fingerprint != first.fingerprint);
  CHECK(second.model != first.model);
}

TEST_CASE("a folder that changes while it is read is read once more; one that goes on is refused") {
  boost::asio::io_context io{1};
  const Folder folder;
  std::atomic<int> reads = 0;
  std::atomic<int> changes = 1;
  ModelReader reader(io, [&](const std::string& name) {
    ++reads;
    if (changes-- > 0) folder.write(std::string(static_cast<std::size_t>(reads) + 1, 'x'));
    return spec_of(name);
  });
  std::optional<ModelReading> got;
  const auto handler = [&](const ModelReading& reading) { got = reading; };
  ask(reader, folder.path(), handler);
  REQUIRE(run_until(io, [&] { return got.has_value(); }));
  CHECK(got->model != nullptr);
  CHECK(reads == 2);
  got.reset();
  changes = 100;
  folder.write("");
  ask(reader, folder.path(), handler);
  REQUIRE(run_until(io, [&] { return got.has_value(); }));
  CHECK(got->model == nullptr);
  CHECK(got->error.find("it is being written to") != std::string::npos);
}

TEST_CASE("what is wrong with a folder comes as its one line, and the reader goes on") {
  boost::asio::io_context io{1};
  ModelReader reader(io);
  std::vector<std::string> said;
  const std::string demo = TROUPE_SOURCE_DIR "/examples/demo/model";
  for (const auto& folder : {std::string("/nowhere/at/all"), demo})
    ask(reader, folder, [&](const ModelReading& reading) {
      said.push_back(reading.model ? reading.model->pipeline_class : reading.error);
    });
  REQUIRE(run_until(io, [&] { return said.size() == 2; }));
  std::string why;
  try {
    spec::read_model_spec("/nowhere/at/all");
  } catch (const std::exception& error) {
    why = error.what();
  }
  std::ranges::sort(said);
  CHECK(said == std::vector<std::string>{"PixArtAlphaPipeline", why});
}

TEST_CASE("a model's name is looked up in the cache, and told where its repository may be named") {
  const testing::HubCache cache;
  const auto read = [](const AllowedFolders& allowed, const std::string& name) {
    boost::asio::io_context io{1};
    ModelReader reader(io, spec_of, allowed);
    ModelReading got;
    bool answered = false;
    ask(reader, name, [&](const ModelReading& reading) {
      got = reading;
      answered = true;
    });
    CHECK(run_until(io, [&] { return answered; }));
    return got;
  };
  const AllowedFolders repository({cache.repository()}), other({"/usr"});
  for (const AllowedFolders& allowed : {AllowedFolders(), repository}) {
    CHECK(read(allowed, "an-org/a-model").folder == cache.snapshot());
    CHECK(read(allowed, "an-org/a-model").error == "");
  }
  CHECK(read({}, "an-org/other").error.find("not in the Hugging Face cache") != std::string::npos);
  // Who may not name it does not learn whether it is there.
  const auto there = read(other, "an-org/a-model").error,
             not_there = read(other, "an-org/b-model").error;
  CHECK(there.find("[model] an-org/a-model: may not be named here") == 0);
  CHECK(there.substr(22) == not_there.substr(22));
}

TEST_CASE("a reading that throws what is no exception is answered, and so is the next one") {
  boost::asio::io_context io{1};
  ModelReader reader(io, [](const std::string& folder) -> spec::ModelSpec {
    if (folder == "bad") throw 7;
    return spec_of(folder);
  });
  std::vector<std::string> said;
  for (const char* name : {"bad", "good"})
    ask(reader, name, [&](const ModelReading& reading) {
      said.push_back(reading.model ? reading.model->folder.string() : reading.error);
    });
  REQUIRE(run_until(io, [&] { return said.size() == 2; }));
  std::ranges::sort(said);
  CHECK(said == std::vector<std::string>{"[read_model] bad: an exception without text", "good"});
}

TEST_CASE("a reader that goes drops its handlers, also when a reading is in hand") {
  boost::asio::io_context io{1};
  std::atomic<bool> begun = false;
  std::atomic<bool> handled = false;
  {
    ModelReader reader(io, [&](const std::string& folder) {
      begun = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return spec_of(folder);
    });
    for (int i = 0; i < 3; ++i)
      ask(reader, "x", [&](const ModelReading&) { handled = true; });
    while (!begun)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  run_until(io, [&] { return io.run_for(std::chrono::milliseconds(200)) == 0; });
  CHECK_FALSE(handled);
  std::atomic<bool> done = false;
  {
    ModelReader reader(io, [&](const std::string& folder) {
      done = true;
      return spec_of(folder);
    });
    ask(reader, "x", [&](const ModelReading&) { handled = true; });
    while (!done)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  io.restart();
  io.run_for(std::chrono::milliseconds(50));
  CHECK_FALSE(handled);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a thread that cannot be started is an error, and those before it end") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Room for the stacks of some of them.
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t room = pages * static_cast<std::uint64_t>(getpagesize()) + (100u << 20);
    const rlimit limit{room, room};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    try {
      service::SideThread many([](auto) {}, 64, 200);
      _exit(3);
    } catch (const std::system_error&) {
      _exit(0);
    }
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif
