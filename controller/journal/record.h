#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "controller/jobs/job_table.h"
#include "transport/control/blob_store.h"
#include "transport/wire/envelope.h"

namespace troupe::journal {

/// Format of everything that is stored: of the structs here, and of the wire's that are in them. A
/// journal of another format is refused.
inline constexpr int kFormat = 100 * 5 + wire::kProtocolVersion;

/// Roles of a job's blobs.
enum class Role : int { input = 0, boundary = 1, result = 2 };

/// A blob with what says how it is used, encoded.
struct Part {
  std::string head;
  control::BlobBytes bytes;  // null: it was damaged
};
/// True when none of the parts was damaged.
bool all_here(const std::vector<Part>& parts);

/// A job as it is stored.
struct Record {
  jobs::JobId id = 0;
  std::uint64_t key = 0;
  std::string spec;    // wire::JobSpec
  std::string facts;   // Facts
  std::string report;  // JSON
  std::vector<Part> inputs;
  std::vector<Part> boundary;
  std::vector<Part> results;
  std::string damage;      // what cannot be read, for people; empty = nothing
  std::string lost;        // why it can neither go on nor show how it ended; empty = it can
  bool cancelled = false;  // the lost job had been cancelled
  std::array<std::int64_t, 3> sums = {};  // checksums by role, of the list of its parts
};

struct RecoveryFacts {
  std::string cause;
  std::int32_t step = 0;
  double began = 0;  // Unix seconds, as all times here
  double resumed = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(cause, step, began, resumed);
  }
};

/// A run of steps on one mesh: jobs::JobPart.
struct PartFacts {
  std::int32_t first_step = 0;
  std::vector<std::int32_t> degrees;  // as mesh::kSplitAxes has them

  template <class Archive>
  void serialize(Archive& ar) {
    ar(first_step, degrees);
  }
};

/// The head of a boundary's part.
struct PieceHead {
  std::int32_t next_step = 0;
  wire::BoundaryPiece piece;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(next_step, piece);
  }
};

/// Facts of a job that change while it goes its way.
struct Facts {
  JobState state = JobState::queued;
  std::string phase;  // JobPhase by name
  std::int32_t step = 0;
  bool detached = false;
  bool cancel_asked = false;
  double submitted = 0;
  double started = 0;
  double ended = 0;
  wire::Failure failure;
  std::vector<std::int32_t> refill_steps;
  std::vector<RecoveryFacts> recoveries;
  std::vector<PartFacts> parts;
  std::int32_t pictures = 0;
  std::int32_t steps = 0;  // steps that are computed
  std::uint64_t fingerprint = 0;
  std::vector<std::uint64_t> lora_fingerprints;
  std::vector<std::uint64_t> controlnet_fingerprints;
  double actor_seconds = 0;
  std::int32_t restarts = 0;
  std::int32_t restart_step = 0;
  std::string user;    // user whose key it came in with
  bool alone = false;  // jobs::JobBatching

  template <class Archive>
  void serialize(Archive& ar) {
    ar(state, phase, step, detached, cancel_asked, submitted, started, ended, failure, refill_steps,
       recoveries, parts, pictures, steps, fingerprint, lora_fingerprints, controlnet_fingerprints,
       actor_seconds, restarts, restart_step, user, alone);
  }
};

/// Conversion between the controller's clock, which starts anew, and the calendar's.
struct Calendar {
  double offset = 0;  // Unix seconds at 0 of the controller's clock
  /// Time of the controller's clock now: nothing of the past is later, whatever became of the
  /// calendar's.
  double now = std::numeric_limits<double>::infinity();
  double to_unix(double seconds) const { return seconds == 0 ? 0 : seconds + offset; }
  double from_unix(double seconds) const {
    return seconds == 0 ? 0 : std::min(seconds - offset, now);
  }
};

using BytesOf = std::function<control::BlobBytes(control::BlobId)>;
using KeepBytes = std::function<control::BlobId(control::BlobBytes)>;

Facts facts_of(const jobs::JobEntry& job, const Calendar& calendar);
std::vector<Part> inputs_of(const jobs::JobEntry& job, const BytesOf& bytes_of);
std::vector<Part> boundary_of(const jobs::JobEntry& job, const BytesOf& bytes_of);
std::vector<Part> results_of(const jobs::JobEntry& job, const BytesOf& bytes_of);

/// Returns the newest time in the record, Unix seconds; 0 where there is none.
double newest_time(const Record& record);

/// Makes the job of a record, its blobs held by `keep`. A job that has ended has no plan but what
/// lists show. One that has not ended has no plan at all yet: see revive.h. What cannot be read is
/// not passed over: a damaged boundary is left out, which `phase` says; a job with other damage has
/// failed with it.
jobs::JobEntry job_of(const Record& record, const Calendar& calendar, const KeepBytes& keep);

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
  virtual PreviousRun previous_run() = 0;
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
