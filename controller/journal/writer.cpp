#include "controller/journal/writer.h"

#include "base/log_line.h"
#include "transport/wire/codec.h"

#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace troupe::journal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTryAgain = std::chrono::seconds(1);
constexpr auto kFlushDeadline = std::chrono::seconds(10);

/// True for a change that is not given up: a controller that comes after this one must know of it.
bool must_come(const Change& change) {
  return change.kind == Change::Kind::ended || change.kind == Change::Kind::forgotten;
}

/// Returns the end of a job without what is too large of it.
Change bare_end(Change change, const std::string& why) {
  auto facts = wire::decode<Facts>(wire::as_bytes(change.facts));
  if (facts.state == JobState::succeeded) {
    facts.state = JobState::failed;
    facts.phase = to_string(JobPhase::ended);
    facts.failure = {wire::FailureCode::internal,
                     "it was computed, but its result was too large to be kept: " + why};
  }
  change.facts = wire::encode(facts);
  change.report.clear();
  change.parts.clear();
  return change;
}

}  // namespace

struct Writer::Shared {
  struct Entry {
    Change change;
    Journal::Done done;
    Clock::time_point since;
  };

  boost::asio::io_context* io = nullptr;  // null once the loop is gone
  std::unique_ptr<Store> store;
  std::function<void(const std::string&)> note;
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> queue;
  bool closing = false;
  bool closed = false;
  std::string trouble;
  std::array<Taken, 5> taken;

  std::chrono::milliseconds lasting{};  // that a good time takes until it is said

  // Of the thread alone: what is tried again, oldest first.
  std::deque<Change> late;
  bool behind = false;  // what the store could not write when it was opened is not written yet
  std::optional<Clock::duration> tidy_after;  // so much quiet; null = all is tidy
  Clock::time_point last_change;
  bool said_trouble = false;
  std::optional<Clock::time_point> good_since;  // after a trouble that was said

  struct Outcome {
    std::optional<std::string> error;
    bool later = false;  // it may be kept when it is tried again
  };
  Outcome apply(const Change& change);
  Outcome apply_end_bare(const Change& change, const std::string& why);
  std::string kept_of(const Change& end);
  void post(std::function<void()> action);
  void settle(Entry entry);
  std::optional<Clock::time_point> next_look() const;
  void look_after();
  bool tidy(std::chrono::milliseconds quiet);
  void catch_up();
  void try_late();
  void report(const std::optional<std::string>& error);
  void say_mended();
  void finish();
};

void Writer::Shared::post(std::function<void()> action) {
  const std::lock_guard lock(mutex);
  if (io) boost::asio::post(*io, std::move(action));
}

Writer::Shared::Outcome Writer::Shared::apply(const Change& change) {
  try {
    store->apply(change);
    return {};
  } catch (const TooLarge& error) {
    if (change.kind == Change::Kind::ended) return apply_end_bare(change, error.what());
    return {error.what(), false};
  } catch (const std::exception& error) {
    return {error.what(), true};
  }
}

Writer::Shared::Outcome Writer::Shared::apply_end_bare(const Change& change,
                                                       const std::string& why) {
  std::string text = why + "; its end is kept without its result";
  try {
    store->apply(bare_end(change, why));
  } catch (const TooLarge& error) {
    text = std::string(error.what()) + "; its end is not kept";
  } catch (const wire::WireError& error) {
    text = why + "; its end is not kept: " + error.what();
  } catch (const std::exception& error) {
    return {error.what(), true};
  }
  post([note = note, text] { note(text); });
  return {text, false};
}

void Writer::Shared::report(const std::optional<std::string>& error) {
  {
    const std::lock_guard lock(mutex);
    trouble = error.value_or("");
  }
  if (!error) {
    if (said_trouble && !good_since) good_since = Clock::now();
    return;
  }
  good_since.reset();
  if (std::exchange(said_trouble, true)) return;
  post([note = note, what = *error] {
    note(what + "; until that is mended no job is taken in, and what happens may be forgotten");
  });
}

/// Says that the journal can be written again, once it could be for as long as `lasting`: on a full
/// disk small changes find room between large ones that do not.
void Writer::Shared::say_mended() {
  if (!good_since || !late.empty() || Clock::now() - *good_since < lasting) return;
  good_since.reset();
  said_trouble = false;
  post([note = note] { note("[journal] it can be written again"); });
}

/// Keeps that a job has ended whose end cannot be written now, if that can be written. Returns what
/// becomes of the job, for people.
std::string Writer::Shared::kept_of(const Change& end) {
  try {
    store->keep_bare_end(end);
    return "; that it has ended is kept, what it ended with is not before there is room";
  } catch (const std::exception&) {
    return "; if this controller ends before it can be written, the job runs again";
  }
}

void Writer::Shared::catch_up() {
  try {
    store->catch_up();
    if (std::exchange(behind, false)) report(std::nullopt);
  } catch (const std::exception& error) {
    behind = true;
    report(error.what());
  }
}

void Writer::Shared::try_late() {
  if (behind) catch_up();
  while (!late.empty() && !behind) {
    const auto outcome = apply(late.front());
    if (outcome.later) return report(outcome.error);
    late.pop_front();
    if (late.empty()) report(std::nullopt);
  }
}

void Writer::Shared::settle(Entry entry) {
  try_late();
  const auto kind = entry.change.kind;
  std::optional<std::string> error;
  bool later = true;
  if (!late.empty() && kind != Change::Kind::accepted) {
    // Not before what is older.
    error = trouble;
  } else {
    auto outcome = apply(entry.change);
    error = std::move(outcome.error);
    later = outcome.later;
    if (later) {
      report(error);
    } else if (late.empty()) {
      report(std::nullopt);
    }
  }
  if (error && later && kind == Change::Kind::ended) *error += kept_of(entry.change);
  if (error && later && must_come(entry.change)) late.push_back(std::move(entry.change));
  const double seconds = std::chrono::duration<double>(Clock::now() - entry.since).count();
  {
    const std::lock_guard lock(mutex);
    auto& figures = taken[static_cast<std::size_t>(kind)];
    ++figures.count;
    figures.sum += seconds;
    figures.worst = std::max(figures.worst, seconds);
  }
  if (entry.done) post([done = std::move(entry.done), error] { done(error); });
  tidy(std::chrono::milliseconds(0));
  tidy_after = Store::kPause;
  last_change = Clock::now();
}

void Writer::Shared::finish() {
  try_late();
  try {
    store->close();
  } catch (const std::exception& error) {
    log_line(error.what());
  }
  store.reset();
  const std::lock_guard lock(mutex);
  closed = true;
  changed.notify_all();
}

Writer::Writer(boost::asio::io_context& io, std::unique_ptr<Store> store,
               std::function<void(const std::string&)> note, std::chrono::milliseconds lasting)
    : shared_(std::make_shared<Shared>()) {
  shared_->lasting = lasting;
  shared_->io = &io;
  shared_->store = std::move(store);
  shared_->note = std::move(note);
  std::thread([shared = shared_] { work(shared); }).detach();
}

Writer::~Writer() {
  std::unique_lock lock(shared_->mutex);
  shared_->io = nullptr;
  shared_->closing = true;
  shared_->changed.notify_all();
  // A disk that hangs is left to itself.
  shared_->changed.wait_for(lock, kFlushDeadline, [this] { return shared_->closed; });
}

void Writer::write(Change change, Journal::Done done) {
  const std::lock_guard lock(shared_->mutex);
  auto& queue = shared_->queue;
  // Of boundaries that wait only the newest counts.
  if (change.kind == Change::Kind::boundary) {
    std::erase_if(queue, [&](const auto& entry) {
      return entry.change.kind == Change::Kind::boundary && entry.change.job == change.job;
    });
  }
  queue.push_back({std::move(change), std::move(done), Clock::now()});
  shared_->changed.notify_all();
}

Taken Writer::taken(Change::Kind kind) const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->taken[static_cast<std::size_t>(kind)];
}

std::string Writer::trouble() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->trouble;
}

/// Returns the time when there is something to do without a new change.
std::optional<Clock::time_point> Writer::Shared::next_look() const {
  if (!late.empty() || behind) return Clock::now() + kTryAgain;
  std::optional<Clock::time_point> next;
  if (good_since) next = *good_since + lasting;
  if (tidy_after)
    next = std::min(next.value_or(Clock::time_point::max()), last_change + *tidy_after);
  return next;
}

void Writer::Shared::look_after() {
  try_late();
  say_mended();
  if (!late.empty() || behind || !tidy_after || Clock::now() < last_change + *tidy_after) return;
  if (tidy_after == Store::kPause) {
    tidy(Store::kPause);
    tidy_after = Store::kIdle;
  } else if (tidy(Store::kIdle)) {
    tidy_after.reset();
  } else {
    last_change = Clock::now();
  }
}

/// Tidies the store. False when that is to be tried again; why was said when it arose.
bool Writer::Shared::tidy(std::chrono::milliseconds quiet) {
  try {
    store->tidy(quiet);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void Writer::work(const std::shared_ptr<Shared>& shared) {
  shared->catch_up();
  for (;;) {
    std::unique_lock lock(shared->mutex);
    const auto wanted = [&] { return !shared->queue.empty() || shared->closing; };
    if (const auto next = shared->next_look()) {
      shared->changed.wait_until(lock, *next, wanted);
    } else {
      shared->changed.wait(lock, wanted);
    }
    if (shared->queue.empty() && shared->closing) break;
    if (shared->queue.empty()) {
      lock.unlock();
      shared->look_after();
      continue;
    }
    auto entry = std::move(shared->queue.front());
    shared->queue.pop_front();
    lock.unlock();
    shared->settle(std::move(entry));
    shared->say_mended();
  }
  shared->finish();
}

}  // namespace troupe::journal
