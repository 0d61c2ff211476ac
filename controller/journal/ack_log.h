#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"
#include "controller/jobs/job_table.h"

namespace troupe::journal {

/// Acknowledgements of a job that is not forgotten.
struct Acked {
  std::optional<JobState> end;  // how it ended; clients were told
  bool result_kept = true;      // false: what it ended with could not be written
  bool named = false;           // people were told that the job is lost
  bool operator==(const Acked&) const = default;
};

/// Content of a log of acknowledgements.
struct Acks {
  std::uint64_t journal = 0;  // id of the journal; 0 = not to be read
  int format = 0;             // 0 = not to be read
  std::uint64_t newest = 0;   // number of its newest record; 0 = there is none
  std::uint64_t kept = 0;    // number of the newest change that the database holds, as far as known
  jobs::JobId last_job = 0;  // the highest number that it knows to be given out
  std::map<jobs::JobId, Acked> jobs;
  std::size_t slots = 0;    // records up to the newest one, the damaged ones included
  std::size_t damaged = 0;  // records before the newest one that cannot be read
  bool torn = false;        // something that is no record comes after the newest one
};

/// Reads a log of acknowledgements. Pure. Never throws: what cannot be read is counted.
Acks read_acks(std::string_view bytes);

/// The file `acknowledged` of a journal: one record of fixed size, with a number and a checksum of
/// its own, for everything that clients were told to be kept, synced before they are told. It is
/// apart from the database, so that each of the two names what the other one has lost. Room for
/// the ends of all jobs that it knows is there before they end, on a full disk, too. Failures are
/// std::runtime_error, one line that begins "[journal] FOLDER: ".
class AckLog {
 public:
  /// Reads the file, where there is one.
  explicit AckLog(const std::string& folder);

  bool there() const { return static_cast<bool>(file_); }
  const Acks& acks() const { return acks_; }
  /// Replaces the file by one that says no more than this, undamaged.
  void rewrite(Acks acks);
  /// Sees to it that there is room for one record more than those that may have to come.
  void reserve();
  /// Returns whether the folder still has the file that is written: it may have been removed.
  bool is_there() const;

  /// `kept`: number of the newest change that the database holds.
  void accepted(jobs::JobId job, std::uint64_t kept);
  void ended(jobs::JobId job, JobState end, std::uint64_t kept);
  /// Acknowledges a job's end whose results the database had no room for.
  void ended_bare(jobs::JobId job, JobState end);
  void named(jobs::JobId job);
  void forgotten(jobs::JobId job);

 private:
  void end(jobs::JobId job, JobState end, bool result_kept, std::uint64_t kept);
  void append(std::uint64_t what, jobs::JobId job, std::uint64_t kept);
  void write_at(int file, std::size_t offset, std::string_view bytes) const;
  std::string read_all() const;
  [[noreturn]] void fail(const std::string& what) const;

  std::string folder_;
  FileHandle file_;
  Acks acks_;
  std::size_t room_ = 0;  // records that the file has room for, those that are written included
};

}  // namespace troupe::journal
