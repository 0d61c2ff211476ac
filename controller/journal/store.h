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
  std::uint64_t key = 0;              // accepted
  std::string spec;                   // accepted
  std::string facts;                  // all but forgotten
  std::string report;                 // ended
  std::vector<Part> parts;            // accepted: inputs; boundary: it; ended: results
  JobState state = JobState::queued;  // ended: how

  /// True when the change is not confirmed before it would outlive the loss of power, too.
  bool must_last() const { return kind == Kind::accepted || kind == Kind::ended; }
};

/// End of the controller before this one, and the journal's id and last number.
struct PreviousRun {
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

/// Store that changes go to. Not thread-safe.
class Store {
 public:
  /// Times of quiet after which `tidy` is called: between two changes, and with nothing going on.
  static constexpr std::chrono::milliseconds kPause{20}, kIdle{500};

  virtual ~Store() = default;
  /// Returns all jobs, oldest first, and reads what is known of the past.
  virtual std::vector<Record> load() = 0;
  virtual PreviousRun past() = 0;
  /// Applies a change. Throws std::runtime_error, one line; then nothing of it is kept. TooLarge
  /// when it is for the change's own sake.
  virtual void apply(const Change& change) = 0;
  /// Keeps that a job's end has come which cannot be applied yet, so that the job is not run again.
  /// Throws as `apply`.
  virtual void keep_bare_end(const Change& end) = 0;
  /// Writes what could not be written when the store was opened. Throws as `apply`.
  virtual void catch_up() {}
  /// Does what no change had to wait for, after changes were applied and answered. `quiet`: for so
  /// long nothing has come. Throws as `apply` when it is to be called again.
  virtual void tidy(std::chrono::milliseconds quiet) { (void)quiet; }
  /// Returns what was found to be missing or damaged when the store was loaded, a line each.
  virtual std::vector<std::string> notes() const { return {}; }
  /// Writes the last word of a controller that ends in order.
  virtual void close() = 0;
};

}  // namespace troupe::journal
