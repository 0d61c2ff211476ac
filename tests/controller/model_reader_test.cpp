#include "controller/gateway/model_reader.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using gateway::ModelReader;
using gateway::ModelReading;

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

}  // namespace

TEST_CASE("models are read beside the loop and handed over in the order asked for") {
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
  std::vector<std::string> got;
  for (const char* name : {"slow", "quick", "slow"})
    reader.read(
        name, [&](const ModelReading& reading) { got.push_back(reading.model->folder.string()); });
  CHECK(reader.waiting() == 3);
  bool turned = false;
  boost::asio::post(io, [&] { turned = true; });
  CHECK(run_until(io, [&] { return turned; }));
  CHECK(got.empty());
  go.set_value();
  CHECK(run_until(io, [&] { return got.size() == 3; }));
  CHECK(got == std::vector<std::string>{"slow", "quick", "slow"});
  CHECK_FALSE(on_loop);
  CHECK(reader.waiting() == 0);
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
    reader.read(folder.path(), [&](const ModelReading& reading) { got = reading; });
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
  reader.read(folder.path(), handler);
  REQUIRE(run_until(io, [&] { return got.has_value(); }));
  CHECK(got->model != nullptr);
  CHECK(reads == 2);
  got.reset();
  changes = 100;
  folder.write("");
  reader.read(folder.path(), handler);
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
    reader.read(folder, [&](const ModelReading& reading) {
      said.push_back(reading.model ? reading.model->pipeline_class : reading.error);
    });
  REQUIRE(run_until(io, [&] { return said.size() == 2; }));
  std::string why;
  try {
    spec::read_model_spec("/nowhere/at/all");
  } catch (const std::exception& error) {
    why = error.what();
  }
  CHECK(said == std::vector<std::string>{why, "PixArtAlphaPipeline"});
}

TEST_CASE("a reading that throws what is no exception is answered, and so is the next one") {
  boost::asio::io_context io{1};
  ModelReader reader(io, [](const std::string& folder) -> spec::ModelSpec {
    if (folder == "bad") throw 7;
    return spec_of(folder);
  });
  std::vector<std::string> said;
  for (const char* name : {"bad", "good"})
    reader.read(name, [&](const ModelReading& reading) {
      said.push_back(reading.model ? reading.model->folder.string() : reading.error);
    });
  REQUIRE(run_until(io, [&] { return said.size() == 2; }));
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
      reader.read("x", [&](const ModelReading&) { handled = true; });
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
    reader.read("x", [&](const ModelReading&) { handled = true; });
    while (!done)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  io.restart();
  io.run_for(std::chrono::milliseconds(50));
  CHECK_FALSE(handled);
}
