#include "controller/deployments/device_kinds.h"
#include "controller/journal/journal.h"
#include "controller/journal/memory_store.h"
#include "tests/controller/sample_model.h"
#include "tests/sim/world.h"

namespace troupe::sim {
namespace {

constexpr double kWrite = 0.004;  // seconds a change takes to be kept
constexpr double kStartAgain = 0.5;
constexpr double kAskAgain = 0.3;

}  // namespace

/// The changes of a life go down one after another; those that are under way when it ends are lost.
void World::make_journal() {
  write_until_ = now_;
  journal_ = std::make_unique<journal::Journal>(
      [this](journal::Change change, journal::Journal::Done done) {
        write_until_ = std::max(write_until_, now_) + some(kWrite);
        after(write_until_ - now_,
              door_->while_open([this, change = std::move(change), done = std::move(done)] {
                if (change.kind == journal::Change::Kind::ended &&
                    !journaled_ends_.insert(change.job).second)
                  throw Violation("a job was brought to its end twice");
                store_.apply(change);
                if (done) done(std::nullopt);
              }));
      },
      [this](control::BlobId id) {
        return std::make_shared<const std::string>(held_blob(id).value());
      },
      journal::Calendar{1e6});
}

void World::hand_in(wire::JobSpec spec, std::uint64_t key) {
  if (turned_away_.contains(key)) return;
  if (!accepted_.contains(key)) asked_[key] = spec;
  if (!runner_) return;  // tried again when there is a controller
  if (auto* known = table_.find_key(key)) {
    if (!known->held) asked_.erase(key);
    return;
  }
  const auto living = cluster::most_alike(members_, spec.request.weight_dtype);
  auto plan = plan::make_plan(test::skipping_model(), spec.request, spec.parallelism);
  if (living < plan.degrees.world()) {
    ++refused_;
    turned_away_.insert(key);
    asked_.erase(key);
    return;
  }
  const auto id = table_.add(spec, std::move(plan), 0, true, now_).value();
  auto& job = *table_.find(id);
  job.client.key = key;
  table_.hold(id, "waits to be kept");
  journal_->accepted(job, [this, id, key](const auto&) {
    accepted_.insert(key);
    asked_.erase(key);
    table_.let_go(id);
    runner_->start_queued();
  });
}

void World::end_controller() {
  if (!runner_) return;
  note("the controller dies");
  ++restarts_;
  drainer_.reset();
  supervisor_.reset();
  runner_.reset();
  deployments_.reset();
  journal_.reset();
  door_.reset();
  // Its actors end with it, and its memory.
  for (auto& [incarnation, process] : processes_) {
    process->hangs = true;
    std::shared_ptr<StageActor> gone(std::move(process));
    after(600, [gone] {});
  }
  processes_.clear();
  for (const auto& [peer, cable] : peers_)  // of processes that have just died, too
    cable->known = false;
  cables_.clear();
  peers_.clear();
  calls_.clear();
  blobs_.clear();
  crossing_ = {};  // its successor counts epochs anew, with other processes
  after(some(kStartAgain), [this] { begin_controller(); });
}

void World::begin_controller() {
  note("a controller begins");
  ++life_;
  members_ = cluster::Members(token());
  table_ = jobs::JobTable(1000, 1000);
  make_rooms();
  const auto revival = journal::revive(
      store_.load(), store_.previous_run(), {1e6},
      [this](control::BlobBytes bytes) { return keep_blob(std::move(bytes)); }, table_);
  for (const auto& key : accepted_) {
    if (!table_.find_key(key)) throw Violation("a job that was accepted is lost");
  }
  for (const auto& [id, job] : table_.all()) {
    // Its client asks and is told, if it was not before.
    if (has_ended(job.state)) ends_.try_emplace(id, 1);
    if (has_ended(job.state) != journaled_ends_.contains(id))
      throw Violation("an end was forgotten, or came out of nothing");
  }
  for (const auto id : revival.cancelled)
    runner_->cancel_again(id);
  for (const auto id : revival.to_plan)
    door_->after(some(0.01), [this, id] { go_on(id); });
  for (const auto& [key, spec] : asked_)
    after(some(kAskAgain), [this, key = key, spec = spec] { hand_in(spec, key); });
}

void World::go_on(jobs::JobId id) {
  auto* job = table_.find(id);
  if (!job || job->state != JobState::queued) return;
  const auto failure = journal::take_up(
      *job, plan::make_plan(test::skipping_model(), job->spec.request, job->spec.parallelism),
      "its controller ended", now_, 3);
  journal_->changed(*job);
  if (failure) return runner_->give_up(id, *failure);
  runner_->await_actors(id, "its controller was started again");
}

}  // namespace troupe::sim
