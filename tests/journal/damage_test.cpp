#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "controller/journal/ack_log.h"
#include "controller/journal/sqlite.h"
#include "controller/journal/sqlite_store.h"
#include "tests/journal/jobs.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// Whatever becomes of a journal's files: what was acknowledged is there or named, nothing crashes,
// and no number is given twice.

using namespace troupe;
using journal::SqliteStore;
using testing::Book;
using testing::Desk;
namespace fs = std::filesystem;

namespace {

/// State that clients were told.
struct Told {
  std::map<jobs::JobId, JobState> jobs;  // of those that are not forgotten
  std::map<jobs::JobId, std::string> bytes;
  jobs::JobId last = 0;
};

std::string noise(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(bytes, 0);
  for (char& c : text)
    c = static_cast<char>(random());
  return text;
}

/// Jobs of every kind. Its files are copied as they lie when the process is killed: some changes
/// are in the database, some in its log.
Told make_journal(const std::string& folder) {
  Told told;
  const std::string living = folder + ".living";
  SqliteStore store(living);
  store.load();
  Desk desk;
  Book book{store, desk};
  const auto accept = [&]() -> jobs::JobEntry& {
    auto& job = desk.add(100 + told.last);
    told.last = job.id;
    if (job.id % 3 == 0) {
      told.bytes[job.id] = noise(3'000, static_cast<unsigned>(job.id));
      job.spec.request.init_latents_blob = desk.keep(told.bytes[job.id]);
    }
    book.journal.accepted(job, {});
    told.jobs[job.id] = JobState::queued;
    return job;
  };
  const auto end = [&](jobs::JobEntry& job, JobState state) {
    if (state == JobState::succeeded) {
      told.bytes[job.id] = noise(6'000, 50 + static_cast<unsigned>(job.id));
      job.outcome.blobs = {{"picture", desk.keep(told.bytes[job.id]), 6'000, {}}};
      job.outcome.report = R"({"seed": 7})";
    }
    desk.table.finish(job.id, state, {wire::FailureCode::cancelled, "x"}, 20);
    book.journal.ended(job, {});
    told.jobs[job.id] = state;
  };
  for (int round = 0; round < 3; ++round) {
    auto& done = accept();
    auto& waiting = accept();
    auto& running = accept();
    auto& unwanted = accept();
    auto& old = accept();
    desk.table.start(running.id, 11);
    desk.table.run(running.id);
    book.journal.changed(running);
    desk.set_boundary(running, 3, noise(2'000, 9));
    book.journal.boundary(running);
    end(done, JobState::succeeded);
    end(unwanted, JobState::cancelled);
    end(old, JobState::failed);
    book.journal.forgotten(old.id);
    told.jobs.erase(old.id);
    (void)waiting;
    if (round == 0) store.tidy(SqliteStore::kIdle);
  }
  fs::copy(living, folder);
  return told;
}

/// Returns what is wrong; empty if all is as was told, or if what is not is named.
std::string judge(SqliteStore& store, const Told& told, bool& lost) {
  Desk desk;
  const auto records = store.load();
  journal::revive(records, store.previous_run(), {1000, 50}, desk.keeper(), desk.table);
  lost = false;
  for (const auto& [id, state] : told.jobs) {
    const std::string name = "job " + std::to_string(id);
    const auto* job = desk.table.find(id);
    if (!job) return name + " is not known any more";
    if (job->failure.what.starts_with("[journal] " + name + ": ")) {
      lost = true;
      if (job->state == JobState::queued) return name + " goes on and has failed";
      continue;
    }
    if (job->state != state) return name + " is " + to_string(job->state);
    if (job->client.key != 99 + id) return name + " has another key";
    if (job->spec.request.prompts != std::vector<std::string>{"a cat"})
      return name + " has another prompt";
    const auto bytes = told.bytes.find(id);
    if (state == JobState::succeeded &&
        (job->outcome.blobs.size() != 1 || desk.text(job->outcome.blobs[0].id) != bytes->second))
      return name + " has another result";
    if (state == JobState::queued && bytes != told.bytes.end() &&
        desk.text(job->spec.request.init_latents_blob) != bytes->second)
      return name + " starts from other latents";
  }
  for (const auto& [id, job] : desk.table.all())
    if (!told.jobs.contains(id)) return "job " + std::to_string(id) + " was never handed in";
  if (const auto next = desk.add().id; next <= told.last || next > told.last + 10'000)
    return "the next number is " + std::to_string(next);
  return "";
}

/// Opens the store and hands one more job in; returns what is wrong, or "". `refused`: why the
/// store cannot be opened.
std::string go_on(const std::string& folder, const Told& told, SqliteStore::Options options,
                  std::string& refused, bool& lost) {
  Told more = told;
  try {
    {
      SqliteStore store(folder, options);
      if (auto wrong = judge(store, told, lost); !wrong.empty()) return wrong;
      Desk desk;
      Book book{store, desk};
      desk.table.count_from(store.previous_run().last_job + 1);
      const auto& job = desk.add(100 + store.previous_run().last_job);
      book.journal.accepted(job, {});
      more.last = job.id;
      more.jobs[job.id] = JobState::queued;
    }
    bool again = false;
    SqliteStore next(folder);
    if (auto wrong = judge(next, more, again); !wrong.empty()) return "after that: " + wrong;
    if (again != lost) return "after that what is lost is another";
  } catch (const std::runtime_error& error) {
    refused = error.what();
    if (!refused.starts_with("[journal] " + folder + ": ")) return refused;
    if (refused.find('\n') != std::string::npos) return "more than one line: " + refused;
  }
  return "";
}

struct Damage {
  const char* name;
  void (*strike)(std::string& bytes, std::size_t at, std::mt19937& random);
};
constexpr Damage kDamages[] = {
    {"a flipped bit",
     [](std::string& bytes, std::size_t at, std::mt19937& random) {
       bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
     }},
    {"a page of zeros",
     [](std::string& bytes, std::size_t at, std::mt19937&) {
       for (auto i = at / 512 * 512; i < std::min(bytes.size(), at / 512 * 512 + 4096); ++i)
         bytes[i] = 0;
     }},
    {"an early end", [](std::string& bytes, std::size_t at, std::mt19937&) { bytes.resize(at); }},
    {"garbage", [](std::string& bytes, std::size_t at, std::mt19937& random) {
       for (auto i = at; i < std::min(bytes.size(), at + 1 + random() % 200); ++i)
         bytes[i] = static_cast<char>(random());
     }}};

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void flip(const std::string& file, std::size_t at) {
  auto bytes = read(file);
  bytes.at(at) ^= 1;
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

void copy_folder(const std::string& from, const std::string& to) {
  fs::remove_all(to);
  fs::copy(from, to);
  fs::permissions(to, fs::perms::owner_all);
}

/// A journal whose file SQLite finds damaged, and of whose jobs all can be read.
Told make_damaged(const std::string& folder) {
  const auto told = make_journal(folder);
  fs::permissions(folder, fs::perms::owner_all);
  SqliteStore(folder).close();
  flip(folder + "/journal.db", 39);  // how many of its pages are free
  return told;
}

/// Limit on the size of files, as on a full disk, while it lives.
class Room {
 public:
  explicit Room(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  Room(const Room&) = delete;
  ~Room() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("damage anywhere in a journal's files: every acknowledged job is there or named") {
  // TROUPE_EVERY_OFFSET=1: all of them, not some hundred; takes an hour.
  const bool all = std::getenv("TROUPE_EVERY_OFFSET") != nullptr;
  // In memory: nothing here depends on what a disk syncs.
  if (fs::exists("/dev/shm")) setenv("TMPDIR", "/dev/shm", 1);
  const testing::Scratch scratch;
  unsetenv("TMPDIR");
  const std::string base = scratch / "base", folder = scratch / "j";
  const auto told = make_journal(base);
  REQUIRE(fs::file_size(base + "/journal.db-wal") > 50'000);
  REQUIRE(fs::file_size(base + "/journal.db") > 20'000);
  std::mt19937 random(16);
  int tried = 0, unhurt = 0, named = 0, refusals = 0, hopeless = 0;
  for (const char* file : {"journal.db-wal", "journal.db", "acknowledged", "lock"}) {
    const auto whole = read(base + "/" + file);
    // What lies behind the last acknowledgement is room.
    const auto size = std::string(file) == "acknowledged" ? std::size_t{3'000} : whole.size();
    for (const auto& damage : kDamages) {
      const std::size_t step = all ? 1 : std::max<std::size_t>(1, size / 30);
      for (std::size_t from = 0; from < size; from += step) {
        const auto at = std::min(size - 1, from + (step > 1 ? random() % step : 0));
        INFO(damage.name << " in " << file << " at " << at);
        fs::remove_all(folder);
        fs::copy(base, folder);
        fs::permissions(folder, fs::perms::owner_all);
        auto bytes = whole;
        damage.strike(bytes, at, random);
        std::ofstream(folder + "/" + file, std::ios::binary | std::ios::trunc) << bytes;
        std::string refused;
        bool lost = false;
        REQUIRE(go_on(folder, told, {}, refused, lost) == "");
        ++tried;
        if (refused.empty()) {
          ++(lost ? named : unhurt);
          continue;
        }
        ++refusals;
        INFO(refused);
        CHECK(testing::has(refused, "--journal-salvage"));
        std::string hopelessly;
        REQUIRE(go_on(folder, told, {.salvage = true}, hopelessly, lost) == "");
        hopeless += hopelessly.empty() ? 0 : 1;
      }
    }
  }
  MESSAGE(tried << " damages: " << unhurt << " hurt no job, " << named << " were named job by job, "
                << refusals << " refused, of which --journal-salvage could go on with all but "
                << hopeless);
  CHECK(hopeless == 0);
  CHECK(unhurt > 50);
  CHECK(named > 50);
  CHECK(refusals > 10);
}

TEST_CASE("a file of a journal that is gone is noticed") {
  const testing::Scratch scratch;
  const auto told = make_journal(scratch / "base");
  for (const char* file : {"journal.db-wal", "journal.db", "acknowledged", "lock"}) {
    CAPTURE(file);
    const std::string folder = scratch / "j";
    fs::remove_all(folder);
    fs::copy(scratch / "base", folder);
    fs::permissions(folder, fs::perms::owner_all);
    fs::remove(folder + "/" + file);
    std::string refused;
    bool lost = false;
    CHECK(go_on(folder, told, {}, refused, lost) == "");
    CHECK(lost == (file == std::string("journal.db-wal")));
    CHECK(refused.empty() == (file != std::string("journal.db")));
    if (!refused.empty()) {
      refused.clear();
      CHECK(go_on(folder, told, {.salvage = true}, refused, lost) == "");
      CHECK(lost);
    }
  }
}

TEST_CASE("jobs that the log has lost are named, once, with their numbers") {
  const testing::Scratch scratch;
  const auto told = make_journal(scratch / "base");
  const std::string folder = scratch / "j", log = folder + "/journal.db-wal";
  fs::copy(scratch / "base", folder);
  fs::permissions(folder, fs::perms::owner_all);
  auto bytes = read(log);
  bytes[bytes.size() / 8] ^= 1;
  std::ofstream(log, std::ios::binary | std::ios::trunc) << bytes;
  for (int start = 0; start < 2; ++start) {
    SqliteStore store(folder);
    bool lost = false;
    CHECK(judge(store, told, lost) == "");
    CHECK(lost);
    std::string said;
    for (const auto& note : store.notes())
      said += note + "\n";
    INFO(said);
    CHECK(testing::has(said, "are not in journal.db any more, and are listed as failed: ") ==
          (start == 0));
    CHECK(store.previous_run().last_job >= told.last);
    store.catch_up();
  }
}

TEST_CASE("on a full disk a journal is opened, an end is kept bare, and all is well with room") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto room = [&](rlim_t bytes) {
    rlimit limit = before;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  Desk desk;
  {
    SqliteStore store(folder);
    Book book{store, desk};
    for (int i = 0; i < 3; ++i)
      book.journal.accepted(desk.add(), {});
    auto& job = *desk.table.find(1);
    job.outcome.blobs = {{"picture", desk.keep(noise(500'000, 1)), 500'000, {}}};
    desk.table.finish(1, JobState::succeeded, {}, 20);
    journal::Change end;
    journal::Journal([&](const journal::Change& change, const auto&) { end = change; },
                     desk.bytes_of(), journal::Calendar{1000})
        .ended(job, {});
    room(150'000);
    CHECK_THROWS_WITH_AS(store.apply(end), doctest::Contains("job 1 cannot be written"),
                         std::runtime_error);
    store.keep_bare_end(end);
    room(before.rlim_cur);
  }
  // No room for anything.
  room(1);
  {
    SqliteStore store(folder);
    Desk after;
    const auto revival = journal::revive(store.load(), store.previous_run(),
                                         journal::Calendar{1000}, after.keeper(), after.table);
    CHECK(revival.to_plan == std::vector<jobs::JobId>{2, 3});
    const auto& job = *after.table.find(1);
    CHECK(job.state == JobState::failed);
    CHECK(job.failure.what ==
          "[journal] job 1: it had succeeded, and there was no room to keep what it ended with");
    CHECK_THROWS_AS(store.catch_up(), std::runtime_error);
    Book book{store, after};
    auto& refused = after.add();
    CHECK(refused.id == 4);
    CHECK_THROWS_AS(book.journal.accepted(refused, {}), std::runtime_error);
    room(before.rlim_cur);
    store.catch_up();
    book.journal.accepted(refused, {});
    CHECK(store.load().size() == 4);
  }
  room(before.rlim_cur);
  SqliteStore store(folder);
  CHECK(store.load().size() == 4);
  CHECK(store.previous_run().last_job == 4);
}

TEST_CASE("a salvage that a full disk or a kill ends changes nothing, and the next saves all") {
  const testing::Scratch scratch;
  const auto told = make_damaged(scratch / "base");
  const std::string folder = scratch / "j";
  std::string refused;
  bool lost = false;
  int ends = 0;
  for (const rlim_t room : {1, 5'000, 20'000, 40'000, 60'000, 90'000}) {
    for (const bool killed : {false, true}) {
      for (const bool acknowledged : {true, false}) {
        CAPTURE(room);
        CAPTURE(killed);
        CAPTURE(acknowledged);
        copy_folder(scratch / "base", folder);
        if (!acknowledged) flip(folder + "/acknowledged", 60);
        const pid_t child = fork();
        REQUIRE(child >= 0);
        if (child == 0) {
          std::signal(SIGXFSZ, killed ? SIG_DFL : SIG_IGN);
          const Room full(room);
          try {
            SqliteStore(folder, {.salvage = true});
          } catch (const std::runtime_error&) {
            _exit(1);
          }
          _exit(0);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        ends += status != 0;
        REQUIRE(go_on(folder, told, {.salvage = true}, refused, lost) == "");
        CHECK(refused == "");
        CHECK_FALSE(lost);
        CHECK_FALSE(fs::exists(folder + "/journal.db.new"));
        CHECK_FALSE(fs::exists(folder + "/journal.db.salvaged"));
      }
    }
  }
  CHECK(ends >= 12);
}

TEST_CASE("a salvage that ended between its renames is finished by the next start") {
  const testing::Scratch scratch;
  const auto told = make_damaged(scratch / "base");
  copy_folder(scratch / "base", scratch / "done");
  SqliteStore(scratch / "done", {.salvage = true}).close();
  REQUIRE(fs::exists(scratch / "done/journal.db.damaged"));
  const std::string folder = scratch / "j";
  const auto begin = [&] {
    copy_folder(scratch / "base", folder);
    fs::copy(scratch / "done/journal.db", folder + "/journal.db.salvaged");
  };
  const auto finished = [&] {
    std::string refused;
    bool lost = false;
    CHECK(go_on(folder, told, {}, refused, lost) == "");
    CHECK(refused == "");
    CHECK_FALSE(lost);
    CHECK(fs::exists(folder + "/journal.db.damaged"));
    CHECK_FALSE(fs::exists(folder + "/journal.db.salvaged"));
  };
  SUBCASE("nothing was renamed yet") {
    begin();
    finished();
  }
  SUBCASE("its old log is there, which is none of the new file") {
    begin();
    std::ofstream(folder + "/journal.db-wal") << "of the old one";
    finished();
    CHECK(read(folder + "/journal.db.damaged-wal") == "of the old one");
  }
  SUBCASE("the old file is away") {
    begin();
    fs::rename(folder + "/journal.db", folder + "/journal.db.damaged");
    finished();
  }
}

TEST_CASE("one damaged record in acknowledged costs nothing, whatever was written there last") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  std::size_t jobs = 5;
  bool lose = false;
  {
    SqliteStore store(folder);
    Desk desk;
    Book book{store, desk};
    for (int i = 0; i < 9; ++i)
      book.journal.accepted(desk.add(), {});
    SUBCASE("that jobs were forgotten") {
      for (jobs::JobId id = 1; id <= 4; ++id)
        book.journal.forgotten(id);
    }
    SUBCASE("ends without what they ended with") {
      for (jobs::JobId id = 1; id <= 4; ++id) {
        journal::Change end;
        end.kind = journal::Change::Kind::ended;
        end.job = id;
        end.state = JobState::failed;
        store.keep_bare_end(end);
      }
      jobs = 9;
    }
    SUBCASE("all of it anew") {
      for (jobs::JobId id = 1; id <= 4; ++id)
        book.journal.forgotten(id);
      store.close();
      fs::remove(folder + "/acknowledged");
    }
    SUBCASE("that jobs are lost") {
      lose = true;
    }
    store.close();
  }
  if (lose) journal::Database(folder + "/journal.db").run("DELETE FROM jobs WHERE id < 5");
  {
    SqliteStore store(folder);
    store.load();
    store.catch_up();
  }
  flip(folder + "/acknowledged", 60);
  SqliteStore store(folder);
  const auto records = store.load();
  CHECK(records.size() == jobs);
  CHECK(std::ranges::count_if(records, [](const auto& record) { return !record.lost.empty(); }) ==
        static_cast<long>(jobs - 5));
  std::string said;
  for (const auto& note : store.notes())
    said += note + "\n";
  CHECK(testing::has(said, "it is made anew from journal.db, which is whole"));
}

TEST_CASE("a journal.db that is older than a damaged acknowledged is refused") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  Desk desk;
  for (int start = 0; start < 2; ++start) {
    SqliteStore store(folder);
    Book book{store, desk};
    book.journal.accepted(desk.add(), {});
    store.close();
    if (start == 0) fs::copy_file(folder + "/journal.db", scratch / "older");
  }
  fs::copy_file(scratch / "older", folder + "/journal.db", fs::copy_options::overwrite_existing);
  flip(folder + "/acknowledged", 60);
  CHECK_THROWS_WITH_AS(SqliteStore{folder}, doctest::Contains("older than what was acknowledged"),
                       std::runtime_error);
}

TEST_CASE("a forgotten job's row that was left in the database goes, and never comes back") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  {
    SqliteStore store(folder);
    Desk desk;
    Book book{store, desk};
    for (int i = 0; i < 3; ++i)
      book.journal.accepted(desk.add(), {});
    store.close();
    // As when the controller ends between the two files.
    fs::copy_file(folder + "/journal.db", scratch / "before");
    book.journal.forgotten(2);
    store.close();
  }
  fs::copy_file(scratch / "before", folder + "/journal.db", fs::copy_options::overwrite_existing);
  {
    SqliteStore store(folder);
    CHECK(store.load().size() == 2);
    store.catch_up();
  }
  flip(folder + "/acknowledged", 60);
  SqliteStore store(folder);
  const auto records = store.load();
  REQUIRE(records.size() == 2);
  CHECK(records[0].id == 1);
  CHECK(records[1].id == 3);
}

TEST_CASE("an acceptance that could be neither acknowledged nor undone is undone later") {
  const testing::Scratch scratch;
  const std::string folder = scratch / "j";
  std::signal(SIGXFSZ, SIG_IGN);
  const auto log_bytes = [&] { return fs::file_size(folder + "/journal.db-wal"); };
  Desk desk;
  std::uintmax_t of_one = 0;
  {
    SqliteStore store(folder);
    Book book{store, desk};
    book.journal.accepted(desk.add(), {});
    store.tidy(SqliteStore::kIdle);
    book.journal.accepted(desk.add(), {});
    of_one = log_bytes();
  }
  {
    // Until the next record of `acknowledged` lies further on than a change makes the log long.
    journal::AckLog acks(folder);
    while (acks.acks().slots * 48 < of_one + 4096)
      acks.named(1);
    REQUIRE(acks.acks().slots < 1000);
  }
  {
    SqliteStore store(folder);
    REQUIRE(store.load().size() == 2);
    store.catch_up();
    store.tidy(SqliteStore::kIdle);
    Book book{store, desk};
    auto& refused = desk.add();
    {
      const Room room(of_one + 1);
      CHECK_THROWS_WITH_AS(book.journal.accepted(refused, {}),
                           doctest::Contains("acknowledged cannot be written"), std::runtime_error);
      CHECK_THROWS_WITH_AS(store.tidy(SqliteStore::kIdle),
                           doctest::Contains("cannot be deleted from journal.db"),
                           std::runtime_error);
    }
    store.tidy(SqliteStore::kIdle);
  }
  SqliteStore store(folder);
  const auto records = store.load();
  REQUIRE(records.size() == 2);
  CHECK(records[1].id == 2);
}
