#include "controller/journal/sqlite_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "controller/journal/folder_lock.h"
#include "controller/journal/sqlite.h"
#include "transport/control/types.h"

namespace troupe::journal {
namespace {

constexpr std::int64_t kApplication = 0x54727065;  // "Trpe"
const std::string kRunning = "running";
const std::string kStopped = "stopped";

std::int64_t sum_of(const std::string& bytes) {
  return static_cast<std::int64_t>(control::blob_checksum(bytes.data(), bytes.size()));
}

}  // namespace

/// The database with its statements, which go before it.
struct SqliteStore::Open {
  explicit Open(const std::string& file) : database(file) {}

  Database database;
  Statement add, facts, end, forget, put, drop, drop_all, name;
};

SqliteStore::SqliteStore(std::string folder, Limits limits)
    : folder_(std::move(folder)), limits_(limits), lock_(lock_folder(folder_)) {
  try {
    open();
  } catch (const SqliteError& error) {
    if (error.damaged())
      fail("journal.db is damaged or no journal (" + std::string(error.what()) +
           "): move it away to begin without it");
    fail(std::string("journal.db cannot be used: ") + error.what());
  }
}

SqliteStore::~SqliteStore() = default;

void SqliteStore::fail(const std::string& why) const {
  throw std::runtime_error("[journal] " + folder_ + ": " + why);
}

void SqliteStore::open() {
  // SQLite gives its other files the mode of this one.
  const control::FileHandle made(
      ::open((folder_ + "/journal.db").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!made) fail(std::string("journal.db cannot be written: ") + std::strerror(errno));
  open_ = std::make_unique<Open>(folder_ + "/journal.db");
  auto& database = open_->database;
  if (limits_.value > 0) database.limit_length(limits_.value);
  if (database.read_only()) fail("journal.db cannot be written: it is read-only");
  // Nobody else comes in, so the log needs no shared memory.
  database.run("PRAGMA locking_mode = EXCLUSIVE");
  const auto tables = database.number("SELECT count(*) FROM sqlite_master");
  const auto application = database.number("PRAGMA application_id");
  const auto format = database.number("PRAGMA user_version");
  if (tables > 0 && application != kApplication)
    fail("journal.db is another program's database: name another folder");
  if (tables > 0 && format != kFormat) {
    fail("journal.db has format " + std::to_string(format) + ", this Troupe reads and writes " +
         std::to_string(kFormat) + ": name another folder, or go on with the Troupe that made it");
  }
  if (tables == 0) database.run("PRAGMA auto_vacuum = INCREMENTAL");
  database.run("PRAGMA journal_mode = WAL");
  database.run("PRAGMA journal_size_limit = 16777216");
  database.run("PRAGMA synchronous = FULL");
  if (tables == 0) make_tables();
  open_->add = database.prepare(
      "INSERT OR REPLACE INTO jobs (id, key, spec, spec_sum, facts, facts_sum, report, report_sum) "
      "VALUES (?, ?, ?, ?, ?, ?, '', ?)");
  open_->facts = database.prepare("UPDATE jobs SET facts = ?2, facts_sum = ?3 WHERE id = ?1");
  open_->end = database.prepare("UPDATE jobs SET report = ?2, report_sum = ?3 WHERE id = ?1");
  open_->forget = database.prepare("DELETE FROM jobs WHERE id = ?");
  open_->put = database.prepare(
      "INSERT OR REPLACE INTO parts (job, role, number, head, bytes, sum) "
      "VALUES (?, ?, ?, ?, ?, ?)");
  open_->drop = database.prepare("DELETE FROM parts WHERE job = ? AND role = ?");
  open_->drop_all = database.prepare("DELETE FROM parts WHERE job = ?");
  open_->name = database.prepare("INSERT OR REPLACE INTO names (name, value) VALUES (?, ?)");
  read_past();
}

void SqliteStore::make_tables() {
  auto& database = open_->database;
  database.run("BEGIN IMMEDIATE");
  database.run(
      "CREATE TABLE names (name TEXT PRIMARY KEY, value BLOB NOT NULL);"
      "CREATE TABLE jobs (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, spec BLOB NOT NULL,"
      " spec_sum INTEGER NOT NULL, facts BLOB NOT NULL, facts_sum INTEGER NOT NULL,"
      " report BLOB NOT NULL, report_sum INTEGER NOT NULL);"
      "CREATE TABLE parts (job INTEGER NOT NULL, role INTEGER NOT NULL, number INTEGER NOT NULL,"
      " head BLOB NOT NULL, bytes BLOB NOT NULL, sum INTEGER NOT NULL,"
      " PRIMARY KEY (job, role, number))");
  database.run("PRAGMA application_id = " + std::to_string(kApplication));
  database.run("PRAGMA user_version = " + std::to_string(kFormat));
  auto name = database.prepare("INSERT INTO names (name, value) VALUES (?, ?)");
  const auto id = std::to_string(control::random_incarnation());
  name.bind(1, std::string_view("id")).bind(2, std::string_view(id)).run();
  database.run("COMMIT");
}

std::string SqliteStore::get(const std::string& name) {
  auto statement = open_->database.prepare("SELECT value FROM names WHERE name = ?");
  statement.bind(1, std::string_view(name));
  return statement.step() ? statement.bytes(0) : std::string();
}

void SqliteStore::set(const std::string& name, const std::string& value) {
  open_->name.bind(1, std::string_view(name)).bind(2, std::string_view(value)).run();
}

void SqliteStore::read_past() {
  const auto number = [this](const std::string& name) -> std::uint64_t {
    const auto text = get(name);
    return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 10);
  };
  past_.id = get("id");
  past_.last_job = number("last job");
  past_.pid = static_cast<std::uint32_t>(number("pid"));
  past_.stopped = get("end") == kStopped;
  open_->database.run("BEGIN IMMEDIATE");
  set("pid", std::to_string(::getpid()));
  set("end", kRunning);
  open_->database.run("COMMIT");
}

std::vector<Record> SqliteStore::load() {
  try {
    std::vector<Record> records;
    auto jobs = open_->database.prepare(
        "SELECT id, key, spec, spec_sum, facts, facts_sum, report, report_sum FROM jobs "
        "ORDER BY id");
    auto parts = open_->database.prepare(
        "SELECT role, head, bytes, sum FROM parts WHERE job = ? ORDER BY role, number");
    while (jobs.step()) {
      auto& record = records.emplace_back();
      record.id = static_cast<jobs::JobId>(jobs.number(0));
      record.key = static_cast<std::uint64_t>(jobs.number(1));
      const auto read = [&](int column, const char* name) {
        auto bytes = jobs.bytes(column);
        if (sum_of(bytes) != jobs.number(column + 1)) record.damage = name;
        return bytes;
      };
      record.spec = read(2, "its request");
      record.facts = read(4, "its state");
      record.report = read(6, "its report");
      parts.bind(1, jobs.number(0));
      while (parts.step()) {
        auto head = parts.bytes(1);
        auto bytes = parts.bytes(2);
        const bool intact = sum_of(head + bytes) == parts.number(3);
        switch (static_cast<Role>(parts.number(0))) {
          case Role::input:
            add_row(record.inputs, std::move(head), std::move(bytes), intact);
            break;
          case Role::boundary:
            add_row(record.boundary, std::move(head), std::move(bytes), intact);
            break;
          case Role::result:
            add_row(record.results, std::move(head), std::move(bytes), intact);
            break;
        }
      }
    }
    return records;
  } catch (const SqliteError& error) {
    fail("journal.db is damaged (" + std::string(error.what()) +
         "): move it away to begin without it");
  }
}

void SqliteStore::apply(const Change& change) {
  auto& database = open_->database;
  try {
    // What only moves a job on may be lost with the machine's power, not with the process.
    database.run(change.must_last() ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
    database.run("BEGIN IMMEDIATE");
    apply_in_transaction(change);
    database.run("COMMIT");
    if (change.kind == Change::Kind::forgotten) database.run("PRAGMA incremental_vacuum");
  } catch (const SqliteError& error) {
    const std::string why = error.what();
    try {
      if (database.in_transaction()) database.run("ROLLBACK");
    } catch (const SqliteError&) {
      // It was rolled back by itself.
    }
    const std::string what = "job " + std::to_string(change.job) + " cannot be written: " + why;
    if (error.too_large()) throw TooLarge("[journal] " + folder_ + ": " + what);
    fail(what);
  }
}

/// A row without a head goes on where the one before it ends.
void SqliteStore::add_row(std::vector<Part>& parts, std::string head, std::string bytes,
                          bool intact) {
  if (!head.empty() || parts.empty()) {
    parts.push_back({std::move(head), std::make_shared<const std::string>(std::move(bytes))});
  } else if (parts.back().bytes) {
    parts.back().bytes = std::make_shared<const std::string>(*parts.back().bytes + bytes);
  }
  if (!intact) parts.back().bytes = nullptr;
}

void SqliteStore::put_parts(jobs::JobId job, Role role, const std::vector<Part>& parts) {
  const auto id = static_cast<std::int64_t>(job);
  open_->drop.bind(1, id).bind(2, static_cast<std::int64_t>(role)).run();
  std::int64_t number = 0;
  for (const auto& part : parts) {
    if (!part.bytes) continue;
    const std::string_view all = *part.bytes;
    std::string head = part.head;
    std::size_t at = 0;
    do {
      const auto row = all.substr(at, limits_.row);
      open_->put.bind(1, id)
          .bind(2, static_cast<std::int64_t>(role))
          .bind(3, number++)
          .bind(4, std::string_view(head))
          .bind(5, row)
          .bind(6, sum_of(head + std::string(row)))
          .run();
      head.clear();
      at += row.size();
    } while (at < all.size());
  }
}

void SqliteStore::apply_in_transaction(const Change& change) {
  const auto id = static_cast<std::int64_t>(change.job);
  if (change.kind == Change::Kind::forgotten) {
    open_->forget.bind(1, id).run();
    open_->drop_all.bind(1, id).run();
    return;
  }
  if (change.kind == Change::Kind::accepted) {
    open_->add.bind(1, id)
        .bind(2, static_cast<std::int64_t>(change.key))
        .bind(3, std::string_view(change.spec))
        .bind(4, sum_of(change.spec))
        .bind(5, std::string_view(change.facts))
        .bind(6, sum_of(change.facts))
        .bind(7, sum_of({}))
        .run();
    put_parts(change.job, Role::input, change.parts);
    set("last job", std::to_string(change.job));
    return;
  }
  open_->facts.bind(1, id)
      .bind(2, std::string_view(change.facts))
      .bind(3, sum_of(change.facts))
      .run();
  if (change.kind == Change::Kind::boundary) put_parts(change.job, Role::boundary, change.parts);
  if (change.kind != Change::Kind::ended) return;
  open_->end.bind(1, id)
      .bind(2, std::string_view(change.report))
      .bind(3, sum_of(change.report))
      .run();
  put_parts(change.job, Role::input, {});
  put_parts(change.job, Role::boundary, {});
  put_parts(change.job, Role::result, change.parts);
}

void SqliteStore::close() {
  try {
    open_->database.run("PRAGMA synchronous = FULL");
    set("end", kStopped);
    open_->database.run("PRAGMA wal_checkpoint(TRUNCATE)");
  } catch (const SqliteError& error) {
    fail(std::string("its end cannot be written: ") + error.what());
  }
}

}  // namespace troupe::journal
