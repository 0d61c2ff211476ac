#include "controller/journal/sqlite.h"

#include <sqlite3.h>

namespace troupe::journal {
namespace {

[[noreturn]] void fail(sqlite3* database, int code) {
  // Not every refusal is left in the database's own record.
  const int extended = database ? sqlite3_extended_errcode(database) : 0;
  if ((extended & 0xff) != (code & 0xff)) throw SqliteError(code, sqlite3_errstr(code));
  throw SqliteError(extended, sqlite3_errmsg(database));
}

void check(sqlite3* database, int code) {
  if (code != SQLITE_OK) fail(database, code);
}

}  // namespace

bool SqliteError::damaged() const {
  switch (code_ & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
    case SQLITE_ERROR:  // its schema is another one
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
      return true;
    default:
      return false;
  }
}

bool SqliteError::too_large() const {
  return (code_ & 0xff) == SQLITE_TOOBIG;
}

Statement::Statement(sqlite3* database, const std::string& sql) : database_(database) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr);
  statement_.reset(statement);
  check(database, code);
}

void Statement::Finalize::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

Statement& Statement::bind(int at, std::int64_t value) {
  check(database_, sqlite3_bind_int64(statement_.get(), at, value));
  return *this;
}

Statement& Statement::bind(int at, std::string_view bytes) {
  check(database_, sqlite3_bind_blob64(statement_.get(), at, bytes.data() ? bytes.data() : "",
                                       bytes.size(), SQLITE_STATIC));
  return *this;
}

Statement& Statement::bind_text(int at, std::string_view text) {
  check(database_, sqlite3_bind_text64(statement_.get(), at, text.data(), text.size(),
                                       SQLITE_STATIC, SQLITE_UTF8));
  return *this;
}

bool Statement::step() {
  const int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) {
    sqlite3_reset(statement_.get());
    return false;
  }
  const SqliteError error(sqlite3_extended_errcode(database_), sqlite3_errmsg(database_));
  sqlite3_reset(statement_.get());
  throw error;
}

void Statement::run() {
  while (step()) {
  }
}

std::int64_t Statement::number(int column) const {
  return sqlite3_column_int64(statement_.get(), column);
}

std::string Statement::bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  return size == 0 ? std::string() : std::string(static_cast<const char*>(data), size);
}

Database::Database(const std::string& file) {
  sqlite3* database = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX;
  const int code = sqlite3_open_v2(file.c_str(), &database, flags, nullptr);
  database_.reset(database);
  check(database, code);
}

void Database::Close::operator()(sqlite3* database) const {
  sqlite3_close_v2(database);
}

void Database::run(const std::string& sql) {
  check(database_.get(), sqlite3_exec(database_.get(), sql.c_str(), nullptr, nullptr, nullptr));
}

std::int64_t Database::number(const std::string& sql) {
  auto statement = prepare(sql);
  return statement.step() ? statement.number(0) : 0;
}

bool Database::read_only() const {
  return sqlite3_db_readonly(database_.get(), "main") == 1;
}

void Database::limit_length(int bytes) {
  sqlite3_limit(database_.get(), SQLITE_LIMIT_LENGTH, bytes);
}

bool Database::in_transaction() const {
  return sqlite3_get_autocommit(database_.get()) == 0;
}

}  // namespace troupe::journal
