#include "controller/journal/writer.h"

#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

#include "controller/journal/memory_store.h"
#include "controller/journal/sqlite_store.h"
#include "tests/journal/writing_room.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace std::chrono_literals;
using journal::Change;
using testing::Desk;
using testing::kLasting;
using testing::WritingRoom;

namespace {

/// A store that a test can break.
class Fragile final : public journal::Store {
 public:
  explicit Fragile(std::shared_ptr<std::atomic<bool>> full) : full_(std::move(full)) {}
  std::vector<journal::Record> load() override { return inner_.load(); }
  journal::PreviousRun previous_run() override { return inner_.previous_run(); }
  void apply(const Change& change) override {
    if (*full_) throw std::runtime_error("[journal] the disk is full");
    inner_.apply(change);
  }
  void keep_bare_end(const Change& end) override { inner_.keep_bare_end(end); }
  void close() override { last = inner_.load(); }
  static inline std::vector<journal::Record> last;

 private:
  std::shared_ptr<std::atomic<bool>> full_;
  journal::MemoryStore inner_;
};

}  // namespace

TEST_CASE("on a full disk no job is taken in, ends are written later, and both are said") {
  const auto full = std::make_shared<std::atomic<bool>>(false);
  WritingRoom room(std::make_unique<Fragile>(full));
  auto& first = room.desk.add();
  std::vector<std::string> said;
  const auto hear = [&](const std::optional<std::string>& error) {
    said.push_back(error.value_or("kept"));
  };
  room.journal->accepted(first, hear);
  REQUIRE(room.until([&] { return said.size() == 1; }));
  *full = true;
  room.journal->accepted(room.desk.add(), hear);
  room.desk.table.finish(first.id, JobState::failed, {wire::FailureCode::lost, "x"}, 3);
  room.journal->ended(first, hear);
  REQUIRE(room.until([&] { return said.size() == 3; }));
  CHECK(said ==
        std::vector<std::string>{"kept", "[journal] the disk is full",
                                 "[journal] the disk is full; if this controller ends before it "
                                 "can be written, the job runs again"});
  REQUIRE(room.notes.size() == 1);
  CHECK(room.notes[0].starts_with("[journal] the disk is full; until that is mended"));
  *full = false;
  REQUIRE(room.until([&] { return room.notes.size() == 2; }));
  CHECK(room.notes[1] == "[journal] it can be written again");
  CHECK(room.writer->trouble().empty());
  room.writer.reset();
  REQUIRE(Fragile::last.size() == 1);
  Desk after;
  CHECK(journal::job_of(Fragile::last[0], {1000}, after.keeper()).state == JobState::failed);
}

TEST_CASE("where small changes find room between large ones that do not, it is said once") {
  /// Takes jobs in, keeps no end of one while it is full.
  class Narrow final : public journal::Store {
   public:
    explicit Narrow(std::shared_ptr<std::atomic<bool>> full) : full_(std::move(full)) {}
    std::vector<journal::Record> load() override { return inner_.load(); }
    journal::PreviousRun previous_run() override { return inner_.previous_run(); }
    void apply(const Change& change) override {
      if (*full_ && change.kind == Change::Kind::ended)
        throw std::runtime_error("[journal] the disk is full");
      inner_.apply(change);
    }
    void keep_bare_end(const Change&) override {}
    void close() override {}

   private:
    std::shared_ptr<std::atomic<bool>> full_;
    journal::MemoryStore inner_;
  };
  const auto full = std::make_shared<std::atomic<bool>>(true);
  WritingRoom room(std::make_unique<Narrow>(full));
  std::vector<std::string> said;
  const auto hear = [&](const std::optional<std::string>& error) {
    said.push_back(error.value_or("kept"));
  };
  for (std::size_t i = 0; i < 10; ++i) {
    auto& job = room.desk.add();
    room.journal->accepted(job, hear);
    room.desk.table.finish(job.id, JobState::failed, {wire::FailureCode::lost, "x"}, 3);
    room.journal->ended(job, hear);
    REQUIRE(room.until([&] { return said.size() == 2 * (i + 1); }));
    CHECK(said[2 * i] == "kept");
    CHECK(said[2 * i + 1] ==
          "[journal] the disk is full; that it has ended is kept, what it ended with is not before "
          "there is room");
  }
  // Longer than a good time must last, with ends that wait all the while.
  const auto end = std::chrono::steady_clock::now() + 2 * kLasting;
  room.until([&] { return std::chrono::steady_clock::now() > end; });
  CHECK(room.notes.size() == 1);
  *full = false;
  REQUIRE(room.until([&] { return room.notes.size() == 2; }));
  CHECK(room.notes[1] == "[journal] it can be written again");
}

TEST_CASE("what no change has to wait for is done behind its answer, and again where it failed") {
  struct Seen {
    std::atomic<bool> answered = false, behind_it = false;
    std::atomic<int> idle = 0;
  };
  class Untidy final : public journal::Store {
   public:
    explicit Untidy(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}
    std::vector<journal::Record> load() override { return {}; }
    journal::PreviousRun previous_run() override { return {}; }
    void apply(const Change&) override {}
    void keep_bare_end(const Change&) override {}
    void tidy(std::chrono::milliseconds quiet) override {
      const auto end = std::chrono::steady_clock::now() + 30s;
      while (!seen_->answered && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(1ms);
      if (quiet == 0ms) seen_->behind_it = seen_->answered.load();
      if (quiet == kIdle && ++seen_->idle == 1) throw std::runtime_error("[journal] not now");
    }
    void close() override {}

   private:
    std::shared_ptr<Seen> seen_;
  };
  const auto seen = std::make_shared<Seen>();
  WritingRoom room(std::make_unique<Untidy>(seen));
  room.journal->accepted(room.desk.add(), [&](const auto&) { seen->answered = true; });
  REQUIRE(room.until([&] { return seen->idle == 2; }));
  CHECK(seen->behind_it);
}

TEST_CASE("SQLite at the end of its room: the change is refused whole, the journal stays good") {
  const testing::Scratch scratch;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  {
    WritingRoom room(std::make_unique<journal::SqliteStore>(scratch / "j"));
    std::vector<std::string> said;
    const auto hear = [&](const std::optional<std::string>& error) {
      said.push_back(error.value_or("kept"));
    };
    auto& first = room.desk.add();
    room.journal->accepted(first, hear);
    REQUIRE(room.until([&] { return said.size() == 1; }));
    rlimit small = before;
    small.rlim_cur = 200'000;
    setrlimit(RLIMIT_FSIZE, &small);
    auto& big = room.desk.add();
    big.spec.request.init_latents_blob = room.desk.keep(std::string(1'000'000, 'l'));
    room.journal->accepted(big, hear);
    const bool answered = room.until([&] { return said.size() == 2; });
    setrlimit(RLIMIT_FSIZE, &before);
    REQUIRE(answered);
    CHECK(said[0] == "kept");
    CHECK(said[1].starts_with("[journal] " + scratch / "j" + ": job 2 cannot be written: "));
    room.desk.table.finish(1, JobState::cancelled, {wire::FailureCode::cancelled, "x"}, 3);
    room.journal->ended(first, hear);
    REQUIRE(room.until([&] { return said.size() == 3; }));
    CHECK(said[2] == "kept");
  }
  journal::SqliteStore store(scratch / "j");
  const auto records = store.load();
  REQUIRE(records.size() == 1);
  CHECK(records[0].id == 1);
}

TEST_CASE("what a change takes, from the loop until it is kept") {
  const testing::Scratch scratch;
  WritingRoom room(std::make_unique<journal::SqliteStore>(scratch / "j"));
  int kept = 0;
  double on_loop = 0;
  for (int i = 0; i < 40; ++i) {
    auto& job = room.desk.add();
    room.desk.set_boundary(job, 1, std::string(500'000, 'b'));
    const auto begin = std::chrono::steady_clock::now();
    room.journal->accepted(job, [&](const auto& error) { kept += error ? 0 : 1; });
    room.journal->boundary(job);
    on_loop = std::max(
        on_loop, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    REQUIRE(room.until([&] { return kept == i + 1; }));
    room.desk.table.finish(job.id, JobState::cancelled, {}, 2);
    job.outcome.blobs = {{"picture", room.desk.keep(std::string(400'000, 'p')), 400'000, {}}};
    room.journal->ended(job, {});
    REQUIRE(room.until([&] {
      return room.writer->taken(Change::Kind::ended).count == static_cast<std::uint64_t>(i) + 1;
    }));
  }
  for (const auto& [name, kind] :
       {std::pair{std::string("accepted"), Change::Kind::accepted},
        std::pair{std::string("boundary of 1 MB"), Change::Kind::boundary},
        std::pair{std::string("ended, 0.4 MB"), Change::Kind::ended}}) {
    const auto taken = room.writer->taken(kind);
    MESSAGE(name << ": mean " << taken.sum / static_cast<double>(taken.count) * 1e3 << " ms, worst "
                 << taken.worst * 1e3 << " ms of " << taken.count);
    CHECK(taken.count == 40);
  }
  MESSAGE("on the controller's loop at most " << on_loop * 1e3 << " ms for both");
}
