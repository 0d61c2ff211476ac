#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/journal/record.h"

namespace troupe::journal {

/// Turns what happens to jobs into changes of the journal. Pure: the changes are handed to `write`.
class Journal {
 public:
  /// Called on the controller's loop: nothing when the change is kept, else why not.
  using Done = std::function<void(const std::optional<std::string>& error)>;
  using Write = std::function<void(Change change, Done done)>;

  Journal(Write write, BytesOf bytes_of, Calendar calendar)
      : write_(std::move(write)), bytes_of_(std::move(bytes_of)), calendar_(calendar) {}

  /// Writes a job that has come in. It must not begin, and its client not be told, before `done`.
  void accepted(const jobs::JobEntry& job, Done done);
  /// Notes that something of the job may have changed; writes when that is of note.
  void changed(const jobs::JobEntry& job);
  /// Writes a job's newer boundary.
  void boundary(const jobs::JobEntry& job);
  /// Writes a job that has ended, with its results and report. Nobody is to be told before `done`.
  void ended(const jobs::JobEntry& job, Done done);
  void forgotten(jobs::JobId job);

 private:
  struct Seen {
    JobPhase phase = JobPhase::queued;
    std::size_t recoveries = 0;
    bool cancel_asked = false;
    bool operator==(const Seen&) const = default;
  };
  Change change(Change::Kind kind, const jobs::JobEntry& job);

  Write write_;
  BytesOf bytes_of_;
  Calendar calendar_;
  std::map<jobs::JobId, Seen> seen_;
};

/// Jobs of a journal that have not ended, by what is to be done with them.
struct Revival {
  std::vector<jobs::JobId> to_plan;    // held until they have a plan: see take_up
  std::vector<jobs::JobId> cancelled;  // somebody had asked for that
  double clock_back = 0;  // seconds that the calendar's clock is behind the newest entry
};

/// Returns the cause: "its controller (pid 7) ended without a word", or that it was stopped.
std::string cause_of(const PreviousRun& previous);

/// Puts all jobs of a journal into an empty table, under their numbers. Those that have ended have
/// their results; the others wait, held.
Revival revive(const std::vector<Record>& records, const PreviousRun& previous,
               const Calendar& calendar, const KeepBytes& keep, jobs::JobTable& table);

/// Gives a held job its plan; it goes on from its boundary, as after any loss. Returns why it
/// cannot, where it has been begun more than `max_restarts` times without getting a step further.
std::optional<wire::Failure> take_up(jobs::JobEntry& job, plan::Plan plan, const std::string& cause,
                                     double now, int max_restarts);

}  // namespace troupe::journal
