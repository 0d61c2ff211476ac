#pragma once
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/files.h"
#include "controller/journal/ack_log.h"
#include "controller/journal/record.h"
#include "controller/journal/sqlite.h"

namespace troupe::journal {

/// Locks of the folder itself, and of its file `lock`, which somebody may remove: file systems that
/// lock no folders have only the file's.
struct FolderLock {
  FileHandle folder;
  FileHandle file;
};

/// Makes the folder, if there is none, for its owner alone, and holds it until the handles go; its
/// file `lock` names this process. Throws std::runtime_error "[journal] FOLDER: why": in
/// use by another controller, not writable, another user's, or open to others.
FolderLock lock_folder(const std::string& folder);

/// A journal in a folder: `journal.db`, SQLite with a write-ahead log; `acknowledged`, which names
/// what the database must hold; and `lock`, which its controller holds. Pictures and prompts lie in
/// it unencrypted; the folder must be its owner's alone.
class SqliteStore final : public Store {
 public:
  struct Options {
    std::size_t row = std::size_t{256} << 20;  // bytes of a blob in one row; what is over, follows
    int value = 0;  // bytes that a value or row may have; 0 = as many as SQLite takes
    /// True when what can be read of a damaged database is taken over into a new one; the old files
    /// stay beside it.
    bool salvage = false;
  };

  /// Opens the folder's journal, or makes both. Throws std::runtime_error, one line that begins
  /// "[journal] FOLDER: ": in use (by which process), open to others, not writable, damaged, not a
  /// journal, of another format. On a full disk a journal that is there is opened all the same.
  explicit SqliteStore(std::string folder) : SqliteStore(std::move(folder), Options()) {}
  SqliteStore(std::string folder, Options options);
  ~SqliteStore() override;

  std::vector<Record> load() override;
  PreviousRun previous_run() override { return previous_run_; }
  void apply(const Change& change) override;
  void keep_bare_end(const Change& end) override;
  void catch_up() override;
  void tidy(std::chrono::milliseconds quiet) override;
  std::vector<std::string> notes() const override { return notes_; }
  void close() override;

 private:
  struct Open;
  /// Content of a new database.
  struct New {
    std::uint64_t id = 0;
    jobs::JobId last_job = 0;
    std::uint64_t kept = 0;
    std::vector<Record> records;
  };
  std::string file(const char* suffix = "") const { return folder_ + "/journal.db" + suffix; }
  /// Opens the database. Returns why it cannot be gone on with; "" = it can.
  std::string open();
  std::string open_file();
  void make(Database& database, const New& content);
  void check_torn(std::uintmax_t log_bytes);
  void salvage(const std::string& why);
  Acks build(const New& content);
  void drop_unfinished();
  void move(const std::string& from, const std::string& to);
  std::string put_salvaged_in_place();
  std::vector<Record> readable_records();
  /// Compares the two copies of what was acknowledged and believes the one that is whole.
  std::string compare_acks();
  Acks acks_of_database();
  void read_past();
  void mark_running();
  void drop_unwanted();
  std::optional<std::uint64_t> number(const std::string& name);
  void cut_log();
  void find_lost(std::vector<Record>& records);
  void note(const std::string& what) { notes_.push_back("[journal] " + folder_ + ": " + what); }
  [[noreturn]] void fail(const std::string& why) const;

  std::string folder_;
  Options options_;
  FolderLock lock_;
  std::optional<AckLog> acks_;
  std::unique_ptr<Open> open_;
  PreviousRun previous_run_;
  std::chrono::steady_clock::time_point cut_again_{};
  std::vector<std::string> notes_;
  // What the disk had no room for yet.
  std::optional<Acks> anew_;          // `acknowledged` is to be written anew
  std::set<jobs::JobId> unacked_;     // in the database, not yet in `acknowledged`
  std::set<jobs::JobId> unwanted_;    // in the database, though forgotten or never acknowledged
  std::vector<jobs::JobId> unnamed_;  // lost
  bool unmarked_ = false;             // the database does not say yet that this controller runs
};

}  // namespace troupe::journal
