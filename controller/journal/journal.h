#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "controller/journal/store.h"

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

}  // namespace troupe::journal
