#pragma once
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "controller/journal/record.h"

namespace troupe::journal {

/// One thing that happened to a job. Changes are applied in order, each whole or not at all.
struct Change {
  enum class Kind { accepted, facts, boundary, ended, forgotten };
  Kind kind = Kind::facts;
  jobs::JobId job = 0;
  std::uint64_t key = 0;                          // accepted
  std::string spec;                               // accepted
  std::string facts;                              // all but forgotten
  std::string report;                             // ended
  std::vector<Part> parts;                        // accepted: inputs; boundary: it; ended: results
  wire::JobState state = wire::JobState::queued;  // ended: how

  /// It is not confirmed before it would outlive the loss of power, too.
  bool must_last() const { return kind == Kind::accepted || kind == Kind::ended; }
};

/// How the controller before this one ended.
struct Past {
  std::string id;            // of the journal, made with it; never changes
  jobs::JobId last_job = 0;  // the highest number given out
  std::uint32_t pid = 0;     // of the last controller; 0 = there was none
  bool stopped = false;      // it was stopped in order
};

/// A change is larger than the store can hold: trying it again is of no use.
class TooLarge : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Where changes go. Not thread-safe.
class Store {
 public:
  /// Times of quiet after which `tidy` is called: between two changes, and with nothing going on.
  static constexpr std::chrono::milliseconds kPause{20}, kIdle{500};

  virtual ~Store() = default;
  /// All jobs, oldest first, and what is known of the past.
  virtual std::vector<Record> load() = 0;
  virtual Past past() = 0;
  /// Applies a change. Throws std::runtime_error, one line; then nothing of it is kept. TooLarge
  /// when it is for the change's own sake.
  virtual void apply(const Change& change) = 0;
  /// Of an end that cannot be applied yet: keeps that it has come, so that the job is not run
  /// again. Throws as `apply`.
  virtual void keep_bare_end(const Change& end) = 0;
  /// What could not be written when the store was opened is written. Throws as `apply`.
  virtual void catch_up() {}
  /// After changes were applied and answered: what none of them had to wait for. `quiet`: for so
  /// long nothing has come. Throws as `apply` when it is to be called again.
  virtual void tidy(std::chrono::milliseconds quiet) { (void)quiet; }
  /// What was found to be missing or damaged when it was loaded, a line each.
  virtual std::vector<std::string> notes() const { return {}; }
  /// The last word of a controller that ends in order.
  virtual void close() = 0;
};

}  // namespace troupe::journal
