#include "controller/journal/memory_store.h"
#include "tests/journal/jobs.h"
#include "tests/support/doctest.h"

using namespace troupe;
using journal::MemoryStore;
using testing::Book;
using testing::Desk;

namespace {

plan::Plan plan_of(const jobs::JobEntry& job) {
  return plan::make_plan(test::sample_model(), job.spec.request, job.spec.parallelism);
}

journal::Revival revive(MemoryStore& store, Desk& desk, double offset = 1000) {
  return journal::revive(store.load(), store.previous_run(), {offset}, desk.keeper(), desk.table);
}

}  // namespace

TEST_CASE("a job that has ended comes back with its result, its report and its times") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add(3);
  job.client.user = "alice";
  book.journal.accepted(job, {});
  before.table.start(job.id, 11);
  before.table.run(job.id);
  job.course.recoveries.push_back(
      {.cause = "actor 1 was killed", .step = 4, .began = 12, .resumed = 13});
  const std::string picture = "PNG\0bytes";
  job.outcome.blobs = {{"picture", before.keep(picture), picture.size(), {}}};
  job.outcome.report = R"({"seed": 7})";
  before.table.finish(job.id, JobState::succeeded, {}, 20);
  book.journal.ended(job, {});

  Desk after;
  const auto revival = revive(store, after, /*offset=*/900);  // 100 s of its clock later
  CHECK(revival.to_plan.empty());
  const auto& back = *after.table.find(job.id);
  CHECK(back.state == JobState::succeeded);
  CHECK(back.client.key == 3);
  CHECK(back.client.user == "alice");
  CHECK(back.submitted == doctest::Approx(110));
  CHECK(back.ended == doctest::Approx(120));
  CHECK(back.outcome.report == job.outcome.report);
  REQUIRE(back.outcome.blobs.size() == 1);
  CHECK(after.text(back.outcome.blobs[0].id) == picture);
  CHECK(back.course.recoveries.at(0).cause == "actor 1 was killed");
  CHECK(back.plan.request.prompts == std::vector<std::string>{"a cat"});
  CHECK(back.plan.picture_count() == 1);
  CHECK(after.table.queue().empty());
  CHECK(after.table.find_key(3) == &back);
}

TEST_CASE(
    "a clock that was set back between two controllers makes no duration negative, and is said") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add();
  book.journal.accepted(job, {});
  before.table.start(job.id, 12);
  before.table.run(job.id);
  job.course.recoveries.push_back(
      {.cause = "actor 1 was killed", .step = 4, .began = 13, .resumed = 14});
  before.table.finish(job.id, JobState::failed, {wire::FailureCode::lost, "x"}, 20);
  book.journal.ended(job, {});
  Desk after;
  // The next controller begins at 50 of its own clock, an hour earlier by the calendar's.
  const auto revival = journal::revive(store.load(), store.previous_run(), {1000 - 30 - 3600, 50},
                                       after.keeper(), after.table);
  CHECK(revival.clock_back == doctest::Approx(3600));
  const auto& back = *after.table.find(job.id);
  for (const double time : {back.submitted, back.started, back.ended,
                            back.course.recoveries[0].began, back.course.recoveries[0].resumed})
    CHECK(time == 50);
  Desk later;
  CHECK(journal::revive(store.load(), store.previous_run(), {1000 - 30, 50}, later.keeper(),
                        later.table)
            .clock_back == 0);
  CHECK(later.table.find(job.id)->ended == doctest::Approx(50));
}

TEST_CASE("a job that was running is queued again, held, and goes on from its boundary") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add();
  book.journal.accepted(job, {});
  before.table.start(job.id, 11);
  before.table.run(job.id);
  job.batching.alone = true;
  book.journal.changed(job);
  before.set_boundary(job, 3, "three");
  book.journal.boundary(job);
  before.set_boundary(job, 5, "five");
  book.journal.boundary(job);

  Desk after;
  const auto revival = revive(store, after);
  REQUIRE(revival.to_plan == std::vector<jobs::JobId>{job.id});
  auto& back = *after.table.find(job.id);
  CHECK(back.state == JobState::queued);
  CHECK(back.batching.alone);
  CHECK(after.table.queue().empty());
  REQUIRE(back.course.boundary);
  CHECK(back.course.boundary->next_step == 5);
  REQUIRE(back.course.boundary->pieces.size() == 2);
  CHECK(after.text(back.course.boundary->pieces[1].blob.id) == "five1");
  CHECK(back.course.boundary->pieces[1].first_image == 1);
  CHECK_FALSE(journal::take_up(back, plan_of(back), "gone", 50, 3));
  CHECK(back.course.recoveries.at(0).cause == "gone");
  CHECK(back.course.recoveries.at(0).step == 5);
  CHECK(back.plan.request.refill_steps.empty());
  CHECK(after.table.let_go(job.id));
  CHECK(after.table.queue() == std::vector<jobs::JobId>{job.id});
}

TEST_CASE("a queued job waits again, without a recovery; numbers go on after the last one given") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  const auto first = before.add().id;
  before.table.find(first)->spec.on_behalf_of = "alice";
  book.journal.accepted(*before.table.find(first), {});
  auto& gone = before.add();
  book.journal.accepted(gone, {});
  book.journal.forgotten(gone.id);
  Desk after;
  revive(store, after);
  auto& back = *after.table.find(first);
  CHECK_FALSE(journal::take_up(back, plan_of(back), "gone", 50, 3));
  CHECK(back.course.recoveries.empty());
  CHECK(back.spec.on_behalf_of == "alice");
  CHECK(after.add().id == gone.id + 1);
}

TEST_CASE(
    "a stale job remembers the steps that were filled anew up to its boundary, and adds one") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add(0, Method::pipefusion);
  book.journal.accepted(job, {});
  before.table.start(job.id, 11);
  before.table.run(job.id);
  before.set_boundary(job, 7, "seven");
  book.journal.boundary(job);
  // Of 9 only the loss came to the journal, not the boundary.
  job.plan.request.refill_steps = {4, 9};
  job.course.recoveries.push_back({.cause = "a loss", .step = 9, .began = 3, .resumed = 4});
  book.journal.changed(job);
  Desk after;
  revive(store, after);
  auto& back = *after.table.find(job.id);
  CHECK_FALSE(journal::take_up(back, plan_of(back), "gone", 50, 3));
  CHECK(back.course.boundary->next_step == 7);
  CHECK(back.plan.request.refill_steps == std::vector<std::int32_t>{4, 7});

  // Its next controller ends, too, before the job has begun.
  CHECK_FALSE(journal::take_up(back, plan_of(back), "gone again", 60, 3));
  CHECK(back.course.boundary->next_step == 7);
  CHECK(back.plan.request.refill_steps == std::vector<std::int32_t>{4, 7});
}

TEST_CASE("a job that ends its controller again and again at one step fails with that") {
  MemoryStore store;
  std::optional<wire::Failure> failure;
  Desk first;
  {
    Book book{store, first};
    auto& job = first.add();
    book.journal.accepted(job, {});
    first.table.start(job.id, 11);
    first.table.run(job.id);
    book.journal.changed(job);
  }
  int lives = 0;
  while (!failure && lives < 20) {
    Desk desk;
    Book book{store, desk};
    revive(store, desk);
    auto& job = *desk.table.find(1);
    failure = journal::take_up(job, plan_of(job), "killed", 50, 3);
    book.journal.changed(job);
    desk.table.let_go(1);
    desk.table.start(1, 51);
    desk.table.run(1);
    book.journal.changed(job);
    ++lives;
  }
  CHECK(lives == 5);
  CHECK(failure->what ==
        "killed; it was its controller's end number 5 without a step between them");
}

TEST_CASE("what was to be cancelled is cancelled, not computed") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add();
  book.journal.accepted(job, {});
  job.cancel_asked = true;
  book.journal.changed(job);
  Desk after;
  const auto revival = revive(store, after);
  CHECK(revival.to_plan.empty());
  CHECK(revival.cancelled == std::vector<jobs::JobId>{job.id});
}

TEST_CASE("only what is of note is written") {
  MemoryStore store;
  Desk desk;
  Book book{store, desk};
  auto& job = desk.add();
  book.journal.accepted(job, {});
  for (int step = 0; step < 10; ++step) {
    job.step = step;
    book.journal.changed(job);
  }
  CHECK(book.changes == 1);
  job.phase = JobPhase::denoising;
  book.journal.changed(job);
  CHECK(book.changes == 2);
}

TEST_CASE("start latents come back under a new number; damaged ones fail the job") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  auto& job = before.add();
  job.spec.request.init_latents_blob = before.keep("latents");
  for (const char* picture : {"one", "two"})
    job.spec.request.images.push_back({.blob = before.keep(picture), .bytes = 3});
  book.journal.accepted(job, {});
  Desk after;
  after.last = 100;
  revive(store, after);
  CHECK(after.text(after.table.find(job.id)->spec.request.init_latents_blob) == "latents");
  const auto& images = after.table.find(job.id)->spec.request.images;
  REQUIRE(images.size() == 2);
  CHECK(after.text(images[0].blob) == "one");
  CHECK(after.text(images[1].blob) == "two");

  auto records = store.load();
  records[0].inputs[0].bytes = nullptr;
  Desk other;
  journal::revive(records, store.previous_run(), {1000}, other.keeper(), other.table);
  CHECK(other.table.find(job.id)->state == JobState::failed);
  CHECK(other.table.find(job.id)->failure.what ==
        "[journal] job 1: the data that it starts from is damaged");
}

TEST_CASE("any damage to a record fails its job alone, and says so") {
  MemoryStore store;
  Desk before;
  Book book{store, before};
  for (int i = 0; i < 2; ++i)
    book.journal.accepted(before.add(), {});
  auto records = store.load();
  for (std::size_t cut = 0; cut < records[0].facts.size(); cut += 3) {
    auto damaged = records;
    damaged[0].facts.resize(cut);
    Desk after;
    journal::revive(damaged, store.previous_run(), {1000}, after.keeper(), after.table);
    CHECK(after.table.find(1)->state == JobState::failed);
    CHECK(after.table.find(1)->failure.what.starts_with("[journal] job 1: "));
    CHECK(after.table.find(2)->state == JobState::queued);
    CHECK_FALSE(after.table.find(1)->plan.request.prompts.empty());
  }
}
