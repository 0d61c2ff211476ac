#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "controller/journal/store.h"
#include "transport/control/file_handle.h"

namespace troupe::journal {

/// A journal in a folder: `journal.db`, SQLite with a write-ahead log, and `lock`, which its
/// controller holds. Pictures and prompts lie in it unencrypted; a folder and files that it makes
/// are its owner's alone.
class SqliteStore final : public Store {
 public:
  struct Limits {
    std::size_t row = std::size_t{256} << 20;  // bytes of a blob in one row; what is over, follows
    int value = 0;  // bytes that a value or row may have; 0 = as many as SQLite takes
  };

  /// Opens the folder's journal, or makes both. Throws std::runtime_error, one line that begins
  /// "[journal] FOLDER: ": in use (by which process), not writable, damaged, not a journal, of
  /// another format.
  explicit SqliteStore(std::string folder) : SqliteStore(std::move(folder), Limits()) {}
  SqliteStore(std::string folder, Limits limits);
  ~SqliteStore() override;

  std::vector<Record> load() override;
  Past past() override { return past_; }
  void apply(const Change& change) override;
  void close() override;

 private:
  struct Open;
  void open();
  void make_tables();
  void read_past();
  void set(const std::string& name, const std::string& value);
  std::string get(const std::string& name);
  void apply_in_transaction(const Change& change);
  static void add_row(std::vector<Part>& parts, std::string head, std::string bytes, bool intact);
  void put_parts(jobs::JobId job, Role role, const std::vector<Part>& parts);
  [[noreturn]] void fail(const std::string& why) const;

  std::string folder_;
  Limits limits_;
  control::FileHandle lock_;
  std::unique_ptr<Open> open_;
  Past past_;
};

}  // namespace troupe::journal
