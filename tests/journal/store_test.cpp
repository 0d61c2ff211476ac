#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "controller/journal/sqlite_store.h"
#include "tests/journal/jobs.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using journal::SqliteStore;
using testing::Book;
using testing::Desk;
namespace fs = std::filesystem;

namespace {

std::string why_not(const std::string& folder) {
  try {
    SqliteStore store(folder);
    store.load();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

/// Returns what a controller writes of some jobs with big results.
std::vector<journal::Change> changes_of(int jobs) {
  Desk desk;
  std::vector<journal::Change> changes;
  journal::Journal journal(
      [&](const journal::Change& change, const auto&) { changes.push_back(change); },
      desk.bytes_of(), journal::Calendar{1000});
  for (int i = 0; i < jobs; ++i) {
    auto& job = desk.add();
    journal.accepted(job, {});
    desk.table.start(job.id, 11);
    desk.table.run(job.id);
    journal.changed(job);
    for (int step = 1; step < 4; ++step) {
      desk.set_boundary(job, step, std::string(30'000, static_cast<char>('a' + step)));
      journal.boundary(job);
    }
    job.course.boundary.reset();
    job.outcome.blobs = {{"picture", desk.keep(std::string(50'000, 'p')), 50'000, {}}};
    desk.table.finish(job.id, JobState::succeeded, {}, 20);
    journal.ended(job, {});
  }
  return changes;
}

std::string state_of(SqliteStore& store) {
  Desk desk;
  std::string state;
  for (const auto& record : store.load()) {
    auto job = journal::job_of(record, {1000}, desk.keeper());
    state += std::to_string(job.id) + to_string(job.state) +
             (job.course.boundary ? std::to_string(job.course.boundary->next_step) : "") + " ";
  }
  return state;
}

}  // namespace

TEST_CASE("a journal is found again by the next one that opens its folder") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "some/new/folder";
  std::string id;
  {
    SqliteStore store(folder);
    id = store.previous_run().id;
    CHECK(store.previous_run().pid == 0);
    for (const auto& change : changes_of(3))
      store.apply(change);
  }
  SqliteStore store(folder);
  CHECK(store.previous_run().id == id);
  CHECK(store.previous_run().pid == static_cast<std::uint32_t>(getpid()));
  CHECK_FALSE(store.previous_run().stopped);
  CHECK(store.previous_run().last_job == 3);
  CHECK(state_of(store) == "1succeeded 2succeeded 3succeeded ");
  const auto records = store.load();
  CHECK(records[2].boundary.empty());
  CHECK(*records[2].results.at(0).bytes == std::string(50'000, 'p'));
  struct stat info {};
  for (const char* name : {"", "/journal.db", "/journal.db-wal", "/lock"}) {
    REQUIRE(stat((folder + name).c_str(), &info) == 0);
    CHECK((info.st_mode & 077) == 0);
  }
}

TEST_CASE("a journal whose files are not in their place any more takes nothing in") {
  for (const std::string gone : {"journal.db", "acknowledged", ""}) {
    CAPTURE(gone);
    const testing::Scratch scratch;
    const auto file = scratch.path / "j" / gone;
    SqliteStore store(scratch / "j");
    const auto changes = changes_of(2);
    const auto second = std::ranges::find(changes, 2u, &journal::Change::job);
    REQUIRE(second->must_last());
    std::for_each(changes.begin(), second, [&](const auto& change) { store.apply(change); });
    std::filesystem::rename(file, scratch.path / "elsewhere");
    CHECK(testing::has(testing::message_of([&] { store.apply(*second); }), "removed or replaced"));
    std::filesystem::rename(scratch.path / "elsewhere", file);
    store.apply(*second);
    CHECK(store.load().size() == 2);
  }
}

TEST_CASE("a controller that ended in order says so to the next") {
  const testing::Scratch scratch;
  {
    SqliteStore store(scratch / "j");
    store.close();
  }
  CHECK(SqliteStore(scratch / "j").previous_run().stopped);
  CHECK_FALSE(SqliteStore(scratch / "j").previous_run().stopped);
}

TEST_CASE("a write that was torn leaves the changes before it, whole, and is said to be cut") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  const std::string log = folder + "/journal.db-wal";
  SqliteStore store(folder);
  int cut = 0, tried = 0;
  for (const auto& change : changes_of(3)) {
    // As the files lie when the process is killed in the midst of a change.
    const auto before = state_of(store);
    const auto log_before = fs::file_size(log);
    fs::copy(folder, scratch / "before", fs::copy_options::recursive);
    store.apply(change);
    const auto after = state_of(store);
    const auto log_after = fs::file_size(log);
    for (auto size = log_before; size <= log_after; size += (log_after - log_before) / 5 + 1) {
      const std::string torn = scratch / "torn";
      fs::copy(scratch / "before", torn, fs::copy_options::recursive);
      fs::copy_file(log, torn + "/journal.db-wal", fs::copy_options::overwrite_existing);
      fs::resize_file(torn + "/journal.db-wal", size);
      {
        SqliteStore found(torn);
        const auto state = state_of(found);
        CHECK((state == before || state == after));
        const bool whole = size == log_before || size == log_after;
        for (const auto& note : found.notes())
          CHECK(note.ends_with(" bytes of journal.db-wal are no whole change and were cut off"));
        if (!whole && state == before) CHECK(found.notes().size() == 1);
        cut += found.notes().empty() ? 0 : 1;
        ++tried;
      }
      fs::remove_all(torn);
    }
    fs::remove_all(scratch / "before");
  }
  CHECK(tried > 50);
  CHECK(cut > 20);
}

TEST_CASE("bytes that have rotted fail their job and no other") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  {
    SqliteStore store(folder);
    Desk desk;
    Book book{store, desk};
    for (const char letter : {'p', 'q'}) {
      auto& job = desk.add();
      book.journal.accepted(job, {});
      job.outcome.blobs = {{"picture", desk.keep(std::string(9'000, letter)), 9'000, {}}};
      desk.table.finish(job.id, JobState::succeeded, {}, 20);
      book.journal.ended(job, {});
    }
    store.close();
  }
  std::string bytes;
  {
    std::ifstream in(folder + "/journal.db", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto at = bytes.find(std::string(3000, 'p'));
  REQUIRE(at != std::string::npos);
  std::fstream(folder + "/journal.db", std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<long>(at + 100))
      .put('x');
  SqliteStore store(folder);
  Desk desk;
  journal::revive(store.load(), store.previous_run(), {1000}, desk.keeper(), desk.table);
  CHECK(desk.table.find(1)->state == JobState::failed);
  CHECK(desk.table.find(1)->failure.what == "[journal] job 1: its result is damaged");
  CHECK(desk.table.find(2)->state == JobState::succeeded);
}

TEST_CASE("a folder that cannot be used is refused in one line") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  const auto begins = "[journal] " + folder + ": ";
  {
    const SqliteStore store(folder);
    CHECK(why_not(folder) ==
          begins + "is in use by another controller (pid " + std::to_string(getpid()) + ")");
    fs::remove(folder + "/lock");
    CHECK(why_not(folder) == begins + "is in use by another controller");
  }
  CHECK(why_not(folder).empty());

  std::ofstream(folder + "/journal.db", std::ios::trunc) << "not a database, but text of some size";
  fs::remove(folder + "/journal.db-wal");
  CHECK(why_not(folder).starts_with(begins + "journal.db is damaged or no journal ("));
  fs::remove(folder + "/journal.db");
  fs::create_directory(folder + "/journal.db");
  CHECK(why_not(folder).starts_with(begins + "journal.db cannot be written: "));
  for (const auto mode : {0777, 0750, 0702}) {
    fs::permissions(folder, static_cast<fs::perms>(mode));
    CHECK(why_not(folder) == begins + "is open to other users; give it mode 0700");
  }
  fs::permissions(folder, fs::perms::owner_all);
  if (geteuid() == 0) {
    CHECK(chown(folder.c_str(), 65534, 65534) == 0);
    CHECK(why_not(folder) == begins + "belongs to another user");
  }

  std::ofstream(scratch / "file") << "x";
  const auto under = why_not(scratch / "file/j");
  CHECK(under.starts_with("[journal] " + scratch / "file/j" + ": cannot be "));
  CHECK(under.find('\n') == std::string::npos);
}

TEST_CASE("what is forgotten makes room: the file does not grow with the jobs that went through") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  SqliteStore store(folder);
  const auto size = [&] {
    return fs::file_size(folder + "/journal.db") + fs::file_size(folder + "/journal.db-wal");
  };
  std::uintmax_t largest = 0;
  for (int i = 0; i < 60; ++i) {
    Desk desk;
    Book book{store, desk};
    desk.table.count_from(static_cast<jobs::JobId>(i + 1));
    auto& job = desk.add();
    book.journal.accepted(job, {});
    job.outcome.blobs = {{"picture", desk.keep(std::string(1'000'000, 'p')), 1'000'000, {}}};
    desk.table.finish(job.id, JobState::succeeded, {}, 20);
    book.journal.ended(job, {});
    if (i >= 4) book.journal.forgotten(job.id - 4);
    largest = std::max(largest, size());
  }
  CHECK(store.load().size() == 4);
  MESSAGE("60 MB of results, 4 MB kept: at most " << largest / 1'000'000 << " MB of files");
  CHECK(largest < 30'000'000);
}

TEST_CASE("a blob that is longer than a row lies in several, and comes back whole or damaged") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  std::string picture;
  for (int i = 0; i < 30'000; ++i)
    picture += std::to_string(i) + " ";
  {
    SqliteStore store(folder, {.row = 10'000, .value = 40'000});
    Desk desk;
    Book book{store, desk};
    auto& job = desk.add();
    book.journal.accepted(job, {});
    job.outcome.blobs.clear();
    for (const auto& bytes : {picture, std::string(10'000, 'q'), std::string(), std::string("z")})
      job.outcome.blobs.push_back({"picture", desk.keep(bytes), bytes.size(), {}});
    desk.table.finish(job.id, JobState::succeeded, {}, 20);
    book.journal.ended(job, {});
    const auto records = store.load();
    REQUIRE(records.at(0).results.size() == 4);
    CHECK(*records[0].results[0].bytes == picture);
    CHECK(*records[0].results[1].bytes == std::string(10'000, 'q'));
    CHECK(records[0].results[2].bytes->empty());
    CHECK(*records[0].results[3].bytes == "z");
    store.close();
  }
  std::fstream file(folder + "/journal.db", std::ios::in | std::ios::out | std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto at = bytes.find(" 20000 20001 ");
  REQUIRE(at != std::string::npos);
  file.clear();
  file.seekp(static_cast<long>(at + 2)).put('x');
  file.close();
  SqliteStore store(folder);
  const auto records = store.load();
  REQUIRE(records.at(0).results.size() == 4);
  CHECK(records[0].results[0].bytes == nullptr);
  CHECK(*records[0].results[3].bytes == "z");
}
