#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "controller/journal/record.h"
#include "controller/journal/sqlite.h"

namespace troupe::journal {

/// The tables of a journal's database. Each value has a checksum over its bytes and over whose and
/// what it is; each job also has checksums over the list of its blobs, so that a row that is gone
/// is noticed, too. Throws SqliteError. Transactions are the caller's.
class Tables {
 public:
  /// `row`: bytes of a blob in one row at most; what is over, follows in the next.
  Tables(Database& database, std::size_t row);

  /// Makes the tables in an empty database.
  static void make(Database& database);
  /// Returns why these are not the tables of a journal, or why SQLite finds the file damaged; "" =
  /// sound.
  static std::string flaw(Database& database);

  void write(const Change& change);
  /// Writes what is not damaged of a record, as if it had just come in and gone its way.
  void write(const Record& record);
  void set(const std::string& name, const std::string& value);
  /// Returns the value of a name; nothing where it is not there or damaged.
  std::optional<std::string> get(const std::string& name);
  std::vector<jobs::JobId> ids();
  /// Reads a job's record without its blobs.
  std::optional<Record> read_row(jobs::JobId id);
  std::optional<Record> read(jobs::JobId id);

 private:
  void put_parts(jobs::JobId job, Role role, const std::vector<Part>& parts);
  void read_parts(Record& record);

  std::size_t row_;
  Statement add_, facts_, end_, sums_, forget_, put_, drop_, drop_all_, set_, get_, ids_, row_of_,
      parts_of_;
};

}  // namespace troupe::journal
