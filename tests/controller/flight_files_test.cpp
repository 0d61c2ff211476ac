#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "controller/service/introspection.h"
#include "tests/controller/service_fixture.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// Flight records on disks that are slow, full or not there.

using namespace troupe;
using nlohmann::json;
using troupe::test::ServiceFixture;
using troupe::testing::has;
using troupe::testing::Scratch;

namespace {

/// A disk that stands still until `flow`.
class StillDisk {
 public:
  std::string write(const std::filesystem::path& path, std::string_view text) {
    {
      const std::lock_guard lock(mutex_);
      if (first_.empty()) first_ = text;
    }
    flows_.wait();
    return write_whole(path, text);
  }
  /// The first that it was to write.
  std::string flow() {
    flows_.open();
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  test::Gate flows_;
  std::mutex mutex_;
  std::string first_;
};

/// A fixture with one job, whose records are kept in a folder on a disk that stands still.
struct SlowDisk : ServiceFixture {
  Scratch scratch;
  const std::filesystem::path file = scratch.path / "flight-job-1.json";
  std::vector<std::string> notes;
  std::shared_ptr<StillDisk> disk = std::make_shared<StillDisk>();
  std::unique_ptr<service::Introspection> records;

  explicit SlowDisk(bool stands_still = true) {
    gate.open();
    take_in(*client);
    if (!stands_still) disk->flow();
    keep_in(scratch.path);
  }
  void keep_in(const std::filesystem::path& folder) {
    auto tools = desk_tools(folder.string());
    // Who is left behind by the test's end still has it.
    tools.write = [disk = disk](const auto& path, auto text) { return disk->write(path, text); };
    tools.note = [this](const auto& text) { notes.push_back(text); };
    records = std::make_unique<service::Introspection>(std::move(tools));
    use(*records);
  }
  /// The records of job 1, as clients are told of them.
  json told() {
    json failures;
    client->request(wire::GetDocument{wire::DocumentKind::failures, 1, 0}, std::chrono::seconds(60),
                    [&](const control::Reply& reply) {
                      const auto document = reply.as<wire::Document>();
                      failures = json::parse(*blobs.bytes(document.blob.id));
                    });
    REQUIRE(until([&] { return !failures.is_null(); }));
    return failures["failures"];
  }
};

double seconds_since(control::Clock::time_point begin) {
  return std::chrono::duration<double>(control::Clock::now() - begin).count();
}

}  // namespace

TEST_CASE("a flight record on a disk that stands still does not hold up the loop") {
  SlowDisk fixture;
  const auto begin = control::Clock::now();
  CHECK(fixture.records->record_failure(1, "it broke") == fixture.file.string());
  CHECK(seconds_since(begin) < 10);  // a tenth of one, and what the machine takes
  // From then on nothing is waited for, and only so much waits.
  std::size_t taken = 0;
  const auto again = control::Clock::now();
  while (taken < 1000 && !fixture.records->record_failure(1, "again").empty())
    ++taken;
  CHECK(taken > 0);
  CHECK(taken < 1000);
  CHECK(seconds_since(again) < 10);
  const auto before = fixture.told();  // the loop goes on
  REQUIRE(before.size() == 16);
  for (const auto& failure : before)
    CHECK_FALSE(failure.contains("file"));
  CHECK(json::parse(fixture.disk->flow())["failure"] == "it broke");
  REQUIRE(fixture.until([&] { return fixture.told()[0].contains("file"); }));
  CHECK(fixture.told()[0]["file"] == fixture.file.string());
  CHECK(fixture.notes.empty());
}

TEST_CASE("a controller that ends does not wait for a disk that stands still") {
  SlowDisk fixture;
  fixture.records->record_failure(1, "it broke");
  const auto begin = control::Clock::now();
  fixture.use(fixture.desk);
  fixture.records.reset();
  CHECK(seconds_since(begin) < 30);
  // Whoever was left behind takes no harm.
  CHECK(json::parse(fixture.disk->flow())["failure"] == "it broke");
  CHECK(fixture.until([&] { return std::filesystem::exists(fixture.file); }));
}

TEST_CASE("what is written when the controller ends is there afterwards") {
  SlowDisk fixture(/*stands_still=*/false);
  for (const char* failure : {"one", "two", "three"})
    fixture.records->record_failure(1, failure);
  fixture.use(fixture.desk);
  fixture.records.reset();
  CHECK(json::parse(std::ifstream(fixture.file))["failure"] == "three");
}

TEST_CASE("a record that cannot be written is not named, or a note says so") {
  SlowDisk fixture;
  fixture.records->record_failure(1, "it broke");
  std::filesystem::create_directories(fixture.file);  // a file cannot take its place
  fixture.disk->flow();
  REQUIRE(fixture.until([&] { return !fixture.notes.empty(); }));
  CHECK(fixture.notes == std::vector{"flight record " + fixture.file.string() +
                                     " cannot be written: Is a directory"});
  fixture.keep_in(fixture.scratch.path / "missing");
  CHECK(fixture.records->record_failure(1, "it broke") == "");
  CHECK_FALSE(fixture.told()[0].contains("file"));
  CHECK(fixture.until([&] { return fixture.notes.size() == 2; }));
}

TEST_CASE("a link or a pipe that lies in a flight record's way is taken away") {
  const Scratch scratch;
  const std::string file = scratch / "flight-job-1.json", victim = scratch / "victim";
  const std::string temporary = file + "." + std::to_string(getpid());
  std::filesystem::create_symlink(victim, temporary);
  CHECK(write_whole(file, "one") == "");
  CHECK_FALSE(std::filesystem::exists(victim));
  REQUIRE(mkfifo(temporary.c_str(), 0600) == 0);
  CHECK(write_whole(file, "two") == "");
  CHECK(testing::read_all(file) == "two");
}
