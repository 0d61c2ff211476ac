#include <atomic>

#include "controller/journal/sqlite_store.h"
#include "tests/journal/writing_room.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

// Changes that are too large for what a store takes.

using namespace troupe;
using journal::Change;
using testing::Desk;
using testing::WritingRoom;

TEST_CASE("an end that is too large is kept without its result, and holds up nothing behind it") {
  const testing::Scratch scratch;
  {
    WritingRoom room(std::make_unique<journal::SqliteStore>(
        scratch / "j", journal::SqliteStore::Options{.row = 50'000, .value = 100'000}));
    std::vector<std::string> said;
    const auto hear = [&](const std::optional<std::string>& error) {
      said.push_back(error.value_or("kept"));
    };
    const auto end = [&](JobState state, const std::string& report, const std::string& picture) {
      auto& job = room.desk.add();
      room.journal->accepted(job, {});
      job.outcome.blobs = {{"picture", room.desk.keep(picture), picture.size(), {}}};
      job.outcome.report = report;
      room.desk.table.finish(job.id, state, {}, 3);
      room.journal->ended(job, hear);
    };
    end(JobState::succeeded, std::string(200'000, 'r'), "p");
    end(JobState::cancelled, std::string(200'000, 'r'), "p");
    end(JobState::succeeded, "short", "p");
    REQUIRE(room.until([&] { return said.size() == 3; }));
    CHECK(said[0].starts_with("[journal] " + scratch / "j" + ": job 1 cannot be written: "));
    CHECK(said[0].ends_with("; its end is kept without its result"));
    CHECK(said[2] == "kept");
    REQUIRE(room.until([&] { return room.notes.size() == 2; }));
    CHECK(room.notes[0] == said[0]);
    CHECK(room.writer->trouble().empty());
    auto& wide = room.desk.add();
    wide.spec.request.prompts = {std::string(200'000, 'w')};
    room.journal->accepted(wide, hear);
    REQUIRE(room.until([&] { return said.size() == 4; }));
    CHECK(said[3].starts_with("[journal] " + scratch / "j" + ": job 4 cannot be written: "));
    CHECK(room.writer->trouble().empty());
  }
  journal::SqliteStore store(scratch / "j");
  Desk after;
  const auto revival =
      journal::revive(store.load(), store.previous_run(), {1000}, after.keeper(), after.table);
  CHECK(revival.to_plan.empty());
  REQUIRE(after.table.all().size() == 3);
  CHECK(after.table.find(1)->state == JobState::failed);
  CHECK(after.table.find(1)->failure.what.starts_with(
      "it was computed, but its result was too large to be kept: [journal] "));
  CHECK(after.table.find(2)->state == JobState::cancelled);
  CHECK(after.table.find(3)->state == JobState::succeeded);
}

TEST_CASE("while ends wait for the disk, one that is too large does not stop the others") {
  const testing::Scratch scratch;
  /// SQLite on a disk that is full for a while.
  class Choosy final : public journal::Store {
   public:
    Choosy(std::unique_ptr<journal::Store> inner, std::shared_ptr<std::atomic<bool>> full)
        : inner_(std::move(inner)), full_(std::move(full)) {}
    std::vector<journal::Record> load() override { return inner_->load(); }
    journal::PreviousRun previous_run() override { return inner_->previous_run(); }
    void apply(const Change& change) override {
      if (*full_) throw std::runtime_error("[journal] the disk is full");
      inner_->apply(change);
    }
    void keep_bare_end(const Change& end) override { inner_->keep_bare_end(end); }
    void close() override { inner_->close(); }

   private:
    std::unique_ptr<journal::Store> inner_;
    std::shared_ptr<std::atomic<bool>> full_;
  };
  const auto full = std::make_shared<std::atomic<bool>>(false);
  {
    WritingRoom room(std::make_unique<Choosy>(
        std::make_unique<journal::SqliteStore>(
            scratch / "j", journal::SqliteStore::Options{.row = 50'000, .value = 100'000}),
        full));
    int accepted = 0;
    for (int i = 0; i < 2; ++i)
      room.journal->accepted(room.desk.add(), [&](const auto&) { ++accepted; });
    REQUIRE(room.until([&] { return accepted == 2; }));
    *full = true;
    int ended = 0;
    for (const jobs::JobId id : {1, 2}) {
      auto& job = *room.desk.table.find(id);
      job.outcome.blobs = {{"picture", room.desk.keep("p"), 1, {}}};
      if (id == 1) job.outcome.report = std::string(200'000, 'r');
      room.desk.table.finish(id, JobState::succeeded, {}, 3);
      room.journal->ended(job, [&](const auto&) { ++ended; });
    }
    REQUIRE(room.until([&] { return ended == 2; }));
    *full = false;
    REQUIRE(room.until([&] { return room.notes.size() == 3; }));
    CHECK(room.notes[1].ends_with("; its end is kept without its result"));
    CHECK(room.notes[2] == "[journal] it can be written again");
  }
  journal::SqliteStore store(scratch / "j");
  Desk after;
  journal::revive(store.load(), store.previous_run(), {1000}, after.keeper(), after.table);
  CHECK(after.table.find(1)->state == JobState::failed);
  CHECK(after.table.find(2)->state == JobState::succeeded);
}
