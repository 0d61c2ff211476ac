#pragma once
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace troupe::journal {

/// Error that SQLite answers.
class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& what) : std::runtime_error(what), code_(code) {}
  /// Returns SQLite's extended result code.
  int code() const { return code_; }
  /// True when the content of the database is at fault, not the disk or who may write to it.
  bool damaged() const;
  /// True when a value or row is longer than SQLite takes.
  bool too_large() const;

 private:
  int code_;
};

/// A prepared statement. Values are bound from 1 and must live until it is run; columns are read
/// from 0.
class Statement {
 public:
  Statement() = default;
  Statement& bind(int at, std::int64_t value);
  Statement& bind(int at, std::string_view bytes);
  Statement& bind_text(int at, std::string_view text);
  /// Runs the statement to its next row; false at its end, from where it can be bound and run anew.
  bool step();
  /// Runs a statement that has no rows.
  void run();

  std::int64_t number(int column) const;
  std::string bytes(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  Statement(sqlite3* database, const std::string& sql);

  sqlite3* database_ = nullptr;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

/// One open database file. Throws SqliteError, one line without the file's name.
class Database {
 public:
  explicit Database(const std::string& file);

  Statement prepare(const std::string& sql) { return {database_.get(), sql}; }
  void run(const std::string& sql);
  /// Returns the first column of the first row of a query; 0 where there is none.
  std::int64_t number(const std::string& sql);
  bool read_only() const;
  /// Refuses values and rows of more bytes; SQLite's own bound is 10^9.
  void limit_length(int bytes);
  /// True when a transaction has begun and is neither committed nor rolled back.
  bool in_transaction() const;

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace troupe::journal
