#include "controller/journal/tables.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"

namespace troupe::journal {
namespace {

using Sql = std::pair<const char*, const char*>;
/// Statements that make the tables, as SQLite keeps their text.
constexpr std::array kTables{
    Sql{"names",
        "CREATE TABLE names (name TEXT PRIMARY KEY, value BLOB NOT NULL, sum INTEGER NOT NULL)"},
    Sql{"jobs",
        "CREATE TABLE jobs (id INTEGER PRIMARY KEY, key INTEGER NOT NULL, spec BLOB NOT NULL,"
        " spec_sum INTEGER NOT NULL, facts BLOB NOT NULL, facts_sum INTEGER NOT NULL,"
        " report BLOB NOT NULL, report_sum INTEGER NOT NULL, inputs_sum INTEGER NOT NULL,"
        " boundary_sum INTEGER NOT NULL, results_sum INTEGER NOT NULL)"},
    Sql{"parts",
        "CREATE TABLE parts (job INTEGER NOT NULL, role INTEGER NOT NULL, number INTEGER NOT NULL,"
        " head BLOB NOT NULL, bytes BLOB NOT NULL, sum INTEGER NOT NULL,"
        " PRIMARY KEY (job, role, number))"}};

constexpr std::array kRoles{Role::input, Role::boundary, Role::result};

std::uint64_t checksum(std::string_view bytes) {
  return control::blob_checksum(bytes.data(), bytes.size());
}

/// Returns a checksum of bytes, and of what they are: "job 7: its state".
std::int64_t sum_of(std::string what, std::string_view bytes) {
  what += fmt::format("{}{}{}{}", '\0', bytes.size(), '\0', checksum(bytes));
  return static_cast<std::int64_t>(checksum(what));
}

std::string name_of(std::int64_t job, std::string_view column) {
  return fmt::format("job {}: {}", job, column);
}

std::int64_t spec_sum(std::int64_t job, std::int64_t key, std::string_view spec) {
  return sum_of(name_of(job, fmt::format("request of key {}", key)), spec);
}

std::int64_t part_sum(std::int64_t job, std::int64_t role, std::int64_t number,
                      const std::string& head, std::string_view bytes) {
  return sum_of(name_of(job, fmt::format("part {}/{} ", role, number)) + head, bytes);
}

/// Returns a checksum of the checksums of all rows of a role.
std::int64_t list_sum(std::int64_t job, Role role, const std::vector<std::int64_t>& sums) {
  return sum_of(name_of(job, fmt::format("role {}", static_cast<int>(role))),
                {reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(std::int64_t)});
}

/// Adds a row to the parts. A row without a head goes on where the one before it ends.
void add_row(std::vector<Part>& parts, std::string head, std::string bytes, bool intact) {
  if (!head.empty() || parts.empty()) {
    parts.push_back({std::move(head), std::make_shared<const std::string>(std::move(bytes))});
  } else if (parts.back().bytes) {
    parts.back().bytes = std::make_shared<const std::string>(*parts.back().bytes + bytes);
  }
  if (!intact) parts.back().bytes = nullptr;
}

std::vector<Part>& parts_of(Record& record, Role role) {
  return role == Role::input      ? record.inputs
         : role == Role::boundary ? record.boundary
                                  : record.results;
}

}  // namespace

void Tables::make(Database& database) {
  for (const auto& [name, sql] : kTables)
    database.run(sql);
}

std::string Tables::flaw(Database& database) {
  for (const auto& [name, sql] : kTables) {
    auto text = database.prepare("SELECT CAST(sql AS BLOB) FROM sqlite_master WHERE name = ?");
    text.bind_text(1, name);
    if (!text.step() || text.bytes(0) != sql)
      return std::string("its table ") + name + " is not what it was made as";
  }
  auto check = database.prepare("PRAGMA integrity_check(1)");
  if (!check.step()) return "it cannot be checked";
  auto said = check.bytes(0);
  std::ranges::replace(said, '\n', ' ');
  return said == "ok" ? "" : said;
}

Tables::Tables(Database& database, std::size_t row)
    : row_(row),
      add_(database.prepare(
          "INSERT OR REPLACE INTO jobs (id, key, spec, spec_sum, facts, facts_sum, report, "
          "report_sum, inputs_sum, boundary_sum, results_sum) "
          "VALUES (?1, ?2, ?3, ?4, ?5, ?6, '', ?7, ?8, ?9, ?10)")),
      facts_(database.prepare("UPDATE jobs SET facts = ?2, facts_sum = ?3 WHERE id = ?1")),
      end_(database.prepare("UPDATE jobs SET report = ?2, report_sum = ?3 WHERE id = ?1")),
      sums_(database.prepare(
          "UPDATE jobs SET inputs_sum = iif(?2 = 0, ?3, inputs_sum), boundary_sum = iif(?2 = 1, "
          "?3, boundary_sum), results_sum = iif(?2 = 2, ?3, results_sum) WHERE id = ?1")),
      forget_(database.prepare("DELETE FROM jobs WHERE id = ?")),
      put_(database.prepare("INSERT OR REPLACE INTO parts (job, role, number, head, bytes, sum) "
                            "VALUES (?, ?, ?, ?, ?, ?)")),
      drop_(database.prepare("DELETE FROM parts WHERE job = ? AND role = ?")),
      drop_all_(database.prepare("DELETE FROM parts WHERE job = ?")),
      set_(database.prepare("INSERT OR REPLACE INTO names (name, value, sum) VALUES (?, ?, ?)")),
      get_(database.prepare("SELECT value, sum FROM names WHERE name = ?")),
      ids_(database.prepare("SELECT id FROM jobs ORDER BY id")),
      row_of_(database.prepare(
          "SELECT key, spec, spec_sum, facts, facts_sum, report, report_sum, inputs_sum, "
          "boundary_sum, results_sum FROM jobs WHERE id = ?")),
      parts_of_(database.prepare("SELECT role, head, bytes, sum, number FROM parts WHERE job = ? "
                                 "ORDER BY role, number")) {}

void Tables::set(const std::string& name, const std::string& value) {
  set_.bind_text(1, name)
      .bind(2, std::string_view(value))
      .bind(3, sum_of("name " + name, value))
      .run();
}

std::optional<std::string> Tables::get(const std::string& name) {
  get_.bind_text(1, name);
  std::optional<std::string> found;
  while (get_.step()) {
    auto value = get_.bytes(0);
    if (sum_of("name " + name, value) == get_.number(1)) found = std::move(value);
  }
  return found;
}

std::vector<jobs::JobId> Tables::ids() {
  std::vector<jobs::JobId> ids;
  while (ids_.step())
    ids.push_back(static_cast<jobs::JobId>(ids_.number(0)));
  return ids;
}

std::optional<Record> Tables::read_row(jobs::JobId id) {
  const auto job = static_cast<std::int64_t>(id);
  std::optional<Record> found;
  row_of_.bind(1, job);
  while (row_of_.step()) {
    auto& record = found.emplace();
    record.id = id;
    const auto key = row_of_.number(0);
    record.key = static_cast<std::uint64_t>(key);
    record.spec = row_of_.bytes(1);
    record.facts = row_of_.bytes(3);
    record.report = row_of_.bytes(5);
    if (spec_sum(job, key, record.spec) != row_of_.number(2)) {
      record.damage = "its request";
      record.key = 0;
    }
    if (sum_of(name_of(job, "state"), record.facts) != row_of_.number(4))
      record.damage = "its state";
    if (sum_of(name_of(job, "report"), record.report) != row_of_.number(6))
      record.damage = "its report";
    for (const auto role : kRoles)
      record.sums[static_cast<std::size_t>(role)] = row_of_.number(7 + static_cast<int>(role));
  }
  return found;
}

std::optional<Record> Tables::read(jobs::JobId id) {
  auto record = read_row(id);
  if (record) read_parts(*record);
  return record;
}

void Tables::read_parts(Record& record) {
  const auto job = static_cast<std::int64_t>(record.id);
  std::array<std::vector<std::int64_t>, 3> sums;
  parts_of_.bind(1, job);
  while (parts_of_.step()) {
    const auto role = parts_of_.number(0);
    if (role < 0 || role > 2) continue;  // then one is missing in another role
    auto head = parts_of_.bytes(1);
    auto bytes = parts_of_.bytes(2);
    const bool intact =
        part_sum(job, role, parts_of_.number(4), head, bytes) == parts_of_.number(3);
    sums[static_cast<std::size_t>(role)].push_back(parts_of_.number(3));
    add_row(parts_of(record, static_cast<Role>(role)), std::move(head), std::move(bytes), intact);
  }
  for (const auto role : kRoles) {
    const auto at = static_cast<std::size_t>(role);
    if (list_sum(job, role, sums[at]) == record.sums[at]) continue;
    // Some are gone, or not its own.
    auto& parts = parts_of(record, role);
    if (parts.empty()) parts.emplace_back();
    for (auto& part : parts)
      part.bytes = nullptr;
  }
}

void Tables::put_parts(jobs::JobId id, Role role, const std::vector<Part>& parts) {
  const auto job = static_cast<std::int64_t>(id);
  const auto as_number = static_cast<std::int64_t>(role);
  drop_.bind(1, job).bind(2, as_number).run();
  std::vector<std::int64_t> sums;
  std::int64_t number = 0;
  for (const auto& part : parts) {
    if (!part.bytes) continue;
    const std::string_view all = *part.bytes;
    std::string head = part.head;
    std::size_t at = 0;
    do {
      const auto row = all.substr(at, row_);
      sums.push_back(part_sum(job, as_number, number, head, row));
      put_.bind(1, job)
          .bind(2, as_number)
          .bind(3, number++)
          .bind(4, std::string_view(head))
          .bind(5, row)
          .bind(6, sums.back())
          .run();
      head.clear();
      at += row.size();
    } while (at < all.size());
  }
  sums_.bind(1, job).bind(2, as_number).bind(3, list_sum(job, role, sums)).run();
}

void Tables::write(const Change& change) {
  const auto job = static_cast<std::int64_t>(change.job);
  if (change.kind == Change::Kind::forgotten) {
    forget_.bind(1, job).run();
    drop_all_.bind(1, job).run();
    return;
  }
  if (change.kind == Change::Kind::accepted) {
    const auto key = static_cast<std::int64_t>(change.key);
    add_.bind(1, job)
        .bind(2, key)
        .bind(3, std::string_view(change.spec))
        .bind(4, spec_sum(job, key, change.spec))
        .bind(5, std::string_view(change.facts))
        .bind(6, sum_of(name_of(job, "state"), change.facts))
        .bind(7, sum_of(name_of(job, "report"), {}));
    for (const auto role : kRoles)
      add_.bind(8 + static_cast<int>(role), list_sum(job, role, {}));
    add_.run();
    put_parts(change.job, Role::input, change.parts);
    return;
  }
  facts_.bind(1, job)
      .bind(2, std::string_view(change.facts))
      .bind(3, sum_of(name_of(job, "state"), change.facts))
      .run();
  if (change.kind == Change::Kind::boundary) put_parts(change.job, Role::boundary, change.parts);
  if (change.kind != Change::Kind::ended) return;
  end_.bind(1, job)
      .bind(2, std::string_view(change.report))
      .bind(3, sum_of(name_of(job, "report"), change.report))
      .run();
  put_parts(change.job, Role::input, {});
  put_parts(change.job, Role::boundary, {});
  put_parts(change.job, Role::result, change.parts);
}

void Tables::write(const Record& record) {
  Change change;
  change.kind = Change::Kind::accepted;
  change.job = record.id;
  change.key = record.key;
  change.spec = record.spec;
  change.facts = record.facts;
  change.parts = record.inputs;
  write(change);
  put_parts(record.id, Role::boundary, record.boundary);
  put_parts(record.id, Role::result, record.results);
  const auto job = static_cast<std::int64_t>(record.id);
  end_.bind(1, job)
      .bind(2, std::string_view(record.report))
      .bind(3, sum_of(name_of(job, "report"), record.report))
      .run();
}

}  // namespace troupe::journal
