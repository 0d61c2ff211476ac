#include "controller/journal/sqlite_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <utility>

#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "controller/journal/sqlite.h"
#include "controller/journal/tables.h"
#include "transport/control/types.h"
#include "transport/wire/codec.h"

namespace troupe::journal {

FolderLock lock_folder(const std::string& folder) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("[journal] " + folder + ": " + why);
  };
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(folder, error)) {
    const auto parent = fs::path(folder).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (error || (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST))
      fail("cannot be made: " + (error ? error.message() : std::strerror(errno)));
  }
  if (const auto why = why_not_private(folder)) fail(*why);
  const std::string file = folder + "/lock";
  FileHandle lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) fail(std::string("cannot be written: ") + std::strerror(errno));
  FileHandle whole(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!whole) fail(std::string("cannot be read: ") + std::strerror(errno));
  char text[32] = {};
  const bool taken = ::flock(whole.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (taken || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const auto got = ::read(lock.get(), text, sizeof text - 1);
    const auto pid = got > 0 ? parse_number<pid_t>(text) : std::nullopt;
    fail("is in use by another controller" +
         (pid ? fmt::format(" (pid {})", *pid) : std::string()));
  }
  // The number of this process is for the error of others alone: on a full disk it is left out.
  const std::string own = std::to_string(::getpid());
  const auto put = ::pwrite(lock.get(), own.data(), own.size(), 0);
  if (::ftruncate(lock.get(), put < 0 ? 0 : put) != 0)
    fail(std::string("cannot be written: ") + std::strerror(errno));
  return {std::move(whole), std::move(lock)};
}

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kApplication = 0x54727065;  // "Trpe"
/// Bytes of the log at which it goes into the database at the next pause; without a pause it does
/// at twice as much.
constexpr std::uintmax_t kLongestLog = 4 << 20;
constexpr std::chrono::seconds kLongestWait{1};
/// Gap in the numbers of jobs after a salvage that cannot know the last number that was given out:
/// numbers go on so far above what can be read.
constexpr jobs::JobId kSafeGap = 1000;
const std::string kRunning = "running";
const std::string kStopped = "stopped";
const std::string kKept = "kept";            // number of the newest change that must not get lost
const std::string kForgotten = "forgotten";  // record in `acknowledged` of the newest forgetting
const std::string kLastJob = "last job";

std::uintmax_t size_of(const std::string& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  return error ? 0 : size;
}

/// Returns "3-5, 9", of long lists the beginning.
std::string list_text(const std::vector<jobs::JobId>& ids) {
  std::string text;
  int runs = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto first = i;
    while (i + 1 < ids.size() && ids[i + 1] == ids[i] + 1)
      ++i;
    if (++runs > 20) return text + ", and others";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ids[first]);
    if (i > first) text += fmt::format("-{}", ids[i]);
  }
  return text;
}

std::optional<Facts> facts_in(const Record& record) {
  try {
    return wire::decode<Facts>(wire::as_bytes(record.facts));
  } catch (const wire::WireError&) {
    return std::nullopt;
  }
}

std::string what_was_said(const Acked& acked) {
  if (!acked.end) return "been accepted";
  return acked.end == JobState::cancelled ? "been cancelled" : to_string(*acked.end);
}

}  // namespace

/// The database with its tables, whose statements go before it.
struct SqliteStore::Open {
  explicit Open(const std::string& file) : database(file) { ::stat(file.c_str(), &opened); }

  /// Returns whether the file of this name is the one that is open.
  bool is_at(const std::string& file) const {
    struct stat there {};
    return ::stat(file.c_str(), &there) == 0 && there.st_ino == opened.st_ino &&
           there.st_dev == opened.st_dev;
  }

  Database database;
  struct stat opened {};
  std::optional<Tables> tables;
};

SqliteStore::SqliteStore(std::string folder, Options options)
    : folder_(std::move(folder)), options_(options), lock_(lock_folder(folder_)) {
  acks_.emplace(folder_);
  drop_unfinished();
  try {
    if (fs::exists(file(".salvaged"))) {
      put_salvaged_in_place();
      note("the salvage of journal.db that an earlier start began is finished");
    }
    if (const auto why = open(); !why.empty()) {
      if (!options_.salvage)
        fail("journal.db is damaged or no journal (" + why +
             "): --journal-salvage goes on with what can be read of it, or move the folder away to "
             "begin without it");
      salvage(why);
    }
    read_past();
  } catch (const SqliteError& error) {
    fail(std::string("journal.db cannot be used: ") + error.what());
  }
  try {
    catch_up();
  } catch (const std::runtime_error&) {
    // The writer tries again, and says why.
  }
}

SqliteStore::~SqliteStore() = default;

void SqliteStore::fail(const std::string& why) const {
  throw std::runtime_error("[journal] " + folder_ + ": " + why);
}

std::string SqliteStore::open() {
  const auto& acks = acks_->acks();
  const bool blank = size_of(file()) == 0 && size_of(file("-wal")) == 0;
  const bool unread = acks_->there() && acks.slots == 0 && acks.torn;
  if (blank && (acks.last_job > 0 || unread)) return "it is missing or empty";
  try {
    const auto log_bytes = size_of(file("-wal"));
    if (auto why = open_file(); !why.empty()) return why;
    check_torn(log_bytes);
    return compare_acks();
  } catch (const SqliteError& error) {
    if (error.damaged()) return error.what();
    throw;
  }
}

std::string SqliteStore::open_file() {
  // SQLite gives its other files the mode of this one.
  const FileHandle made(::open(file().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!made) fail(std::string("journal.db cannot be written: ") + std::strerror(errno));
  open_ = std::make_unique<Open>(file());
  auto& database = open_->database;
  if (options_.value > 0) database.limit_length(options_.value);
  if (database.read_only()) fail("journal.db cannot be written: it is read-only");
  // Nobody else comes in, so the log needs no shared memory.
  database.run("PRAGMA locking_mode = EXCLUSIVE");
  database.run("PRAGMA cell_size_check = ON");
  database.run("PRAGMA trusted_schema = OFF");
  const auto tables = database.number("SELECT count(*) FROM sqlite_master");
  const auto application = database.number("PRAGMA application_id");
  const auto format = database.number("PRAGMA user_version");
  const auto known_format = acks_->acks().format;
  if (tables > 0 && (application != kApplication || format != kFormat)) {
    if (known_format == kFormat) return "its header is not that of a journal";
    if (application != kApplication)
      fail("journal.db is another program's database: name another folder");
    fail(
        fmt::format("journal.db has format {}, this Troupe reads and writes {}: name another "
                    "folder, or go on with the Troupe that made it",
                    format, kFormat));
  }
  if (tables == 0 && acks_->acks().last_job > 0) return "it holds no tables";
  if (tables == 0) database.run("PRAGMA auto_vacuum = INCREMENTAL");
  database.run("PRAGMA journal_mode = WAL");
  // It is cut whole: a log whose pages lie in the database already, read up to a damaged one, would
  // put older pages in the place of newer ones.
  database.run("PRAGMA wal_autocheckpoint = 0");
  database.run("PRAGMA synchronous = FULL");
  if (tables == 0) {
    make(database, {.id = control::random_incarnation(), .records = {}});
    cut_log();
  }
  if (auto flaw = Tables::flaw(database); !flaw.empty()) return flaw;
  open_->tables.emplace(database, options_.row);
  return "";
}

/// Makes the tables of a new journal, in one transaction.
void SqliteStore::make(Database& database, const New& content) {
  database.run("BEGIN IMMEDIATE");
  Tables::make(database);
  database.run(fmt::format("PRAGMA application_id = {}", kApplication));
  database.run(fmt::format("PRAGMA user_version = {}", kFormat));
  Tables tables(database, options_.row);
  for (const auto& record : content.records)
    tables.write(record);
  tables.set("id", std::to_string(content.id));
  tables.set(kLastJob, std::to_string(content.last_job));
  tables.set(kKept, std::to_string(content.kept));
  tables.set(kForgotten, "0");
  database.run("COMMIT");
}

/// Notes what was not whole in the log when its controller ended: SQLite leaves it out.
void SqliteStore::check_torn(std::uintmax_t log_bytes) {
  auto& database = open_->database;
  std::uintmax_t used = 0;
  try {
    auto checkpoint = database.prepare("PRAGMA wal_checkpoint(PASSIVE)");
    if (!checkpoint.step() || checkpoint.number(1) < 0) return;
    const auto frames = static_cast<std::uintmax_t>(checkpoint.number(1));
    if (frames > 0)
      used = 32 + frames * (24 + static_cast<std::uintmax_t>(database.number("PRAGMA page_size")));
  } catch (const SqliteError& error) {
    if (error.damaged()) throw;
    return;  // there is no room for it
  }
  if (log_bytes > used)
    note(fmt::format("the last {} bytes of journal.db-wal are no whole change and were cut off",
                     log_bytes - used));
  cut_log();
}

std::optional<std::uint64_t> SqliteStore::number(const std::string& name) {
  if (!open_ || !open_->tables) return std::nullopt;
  const auto text = open_->tables->get(name);
  return text ? parse_number<std::uint64_t>(*text) : std::nullopt;
}

std::string SqliteStore::compare_acks() {
  const auto& acks = acks_->acks();
  const auto id = number("id");
  const auto kept = number(kKept);
  const auto forgotten = number(kForgotten);
  const auto last = number(kLastJob);
  const bool names = id && kept && forgotten && last;
  const bool same = acks.journal != 0 && (!id || acks.journal == *id);
  const bool whole = acks_->there() && acks.damaged == 0 && acks.slots > 0 && same &&
                     acks.format == kFormat && (!kept || *kept <= acks.kept + 1) &&
                     (!forgotten || *forgotten <= acks.newest);
  if (!names && !whole) return "neither it nor acknowledged says which journal it is";
  if (!names) {
    open_->tables->set("id", std::to_string(acks.journal));
    open_->tables->set(kLastJob, std::to_string(acks.last_job));
    open_->tables->set(kKept, std::to_string(acks.kept));
    open_->tables->set(kForgotten, "0");
    note("journal.db had lost its name; acknowledged has it");
  }
  if (whole) {
    if (acks.torn) {
      note("what came after the newest record of acknowledged is none and was cut off");
      anew_ = acks;
    }
    return "";
  }
  if (same && acks_->there() && *kept < acks.kept)
    return "it is older than what was acknowledged, and acknowledged is damaged, too";
  anew_ = acks_of_database();
  if (*last == 0) return "";  // there was nothing to be acknowledged
  note(!acks_->there() ? std::string("acknowledged is missing: it is made anew from journal.db")
                       : fmt::format("acknowledged is damaged ({} of its records can be read): it "
                                     "is made anew from journal.db, which is whole",
                                     acks.slots - acks.damaged));
  return "";
}

Acks SqliteStore::acks_of_database() {
  Acks acks;
  acks.format = kFormat;
  acks.journal = number("id").value_or(0);
  acks.newest = number(kForgotten).value_or(0);
  acks.kept = number(kKept).value_or(0);
  acks.last_job = std::max(number(kLastJob).value_or(0), acks_->acks().last_job);
  for (const auto id : open_->tables->ids()) {
    const auto row = open_->tables->read_row(id);
    if (!row || (!row->damage.empty() && id > acks.last_job)) continue;  // a number that is none
    auto& acked = acks.jobs[id];
    const auto facts = facts_in(*row);
    if (row->damage.empty() && facts && has_ended(facts->state)) acked.end = facts->state;
    acks.last_job = std::max(acks.last_job, id);
  }
  // Of some ends only `acknowledged` knows.
  for (const auto& [id, acked] : acks_->acks().jobs) {
    const auto found = acks.jobs.find(id);
    if (acks_->acks().journal == acks.journal && found != acks.jobs.end() && !found->second.end)
      found->second = acked;
  }
  return acks;
}

std::vector<Record> SqliteStore::readable_records() {
  std::set<jobs::JobId> ids;
  for (const auto& [id, acked] : acks_->acks().jobs)
    ids.insert(id);
  std::vector<Record> records;
  try {
    if (!open_) return records;
    if (!open_->tables) open_->tables.emplace(open_->database, options_.row);
    for (const auto id : open_->tables->ids())
      ids.insert(id);
  } catch (const SqliteError&) {
    if (!open_->tables) return records;
  }
  for (const auto id : ids) {
    try {
      auto record = open_->tables->read(id);
      if (!record || !record->damage.empty()) continue;
      const auto facts = facts_in(*record);
      if (!facts || !all_here(record->inputs) || !all_here(record->results)) continue;
      if (!all_here(record->boundary)) record->boundary.clear();
      records.push_back(std::move(*record));
    } catch (const SqliteError&) {
      // `acknowledged` names it.
    }
  }
  return records;
}

void SqliteStore::salvage(const std::string& why) {
  const auto acks = acks_->acks();
  const bool whole = acks_->there() && acks.damaged == 0 && acks.slots > 0;
  New content{acks.journal, acks.last_job, acks.kept, readable_records()};
  const auto& records = content.records;
  if (records.empty() && acks.slots == 0)
    fail("nothing of it can be read (" + why + "): move the folder away to begin without it");
  try {
    content.last_job = std::max(content.last_job, number(kLastJob).value_or(0));
    content.kept = std::max(content.kept, number(kKept).value_or(0));
    if (content.id == 0) content.id = number("id").value_or(0);
  } catch (const std::exception&) {
    // Then they are what `acknowledged` says.
  }
  if (!records.empty()) content.last_job = std::max(content.last_job, records.back().id);
  if (!whole) content.last_job += kSafeGap;
  if (content.id == 0) content.id = control::random_incarnation();
  open_.reset();
  auto known = build(content);
  if (!whole) {
    // Those that only `acknowledged` knows are named, too.
    for (const auto& [job, acked] : acks.jobs)
      known.jobs.try_emplace(job, acked);
    acks_->rewrite(known);
  }
  move(".new", ".salvaged");
  const auto kept_as = put_salvaged_in_place();
  if (const auto flaw = open_file(); !flaw.empty())
    fail("journal.db is damaged as soon as it was made: " + flaw);
  note(fmt::format("journal.db was damaged ({}) and is kept as {}; {} jobs of it could be read",
                   why, kept_as, records.size()));
  if (!whole) note("acknowledged is damaged, too: there may be lost jobs that nobody can name");
}

/// Makes journal.db.new, whole on the disk. Returns what it acknowledges.
Acks SqliteStore::build(const New& content) {
  const auto fresh = file(".new");
  Acks acks;
  try {
    const FileHandle made(
        ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!made) fail(std::string("journal.db.new cannot be written: ") + std::strerror(errno));
    open_ = std::make_unique<Open>(fresh);
    auto& database = open_->database;
    if (options_.value > 0) database.limit_length(options_.value);
    database.run("PRAGMA locking_mode = EXCLUSIVE");
    database.run("PRAGMA auto_vacuum = INCREMENTAL");
    // It is thrown away when it is not finished.
    database.run("PRAGMA journal_mode = MEMORY");
    make(database, content);
    open_->tables.emplace(database, options_.row);
    acks = acks_of_database();
    open_->tables.reset();
    database.run("PRAGMA journal_mode = WAL");
    open_.reset();
    if (::fsync(made.get()) != 0)
      fail(std::string("journal.db.new cannot be written: ") + std::strerror(errno));
    ::unlink(file(".new-wal").c_str());
    return acks;
  } catch (const std::runtime_error& error) {
    open_.reset();
    drop_unfinished();
    if (dynamic_cast<const SqliteError*>(&error))
      fail(std::string("journal.db.new cannot be written: ") + error.what());
    throw;
  }
}

void SqliteStore::drop_unfinished() {
  for (const char* suffix : {".new", ".new-wal", ".new-journal"})
    ::unlink(file(suffix).c_str());
}

void SqliteStore::move(const std::string& from, const std::string& to) {
  if (::rename(file(from.c_str()).c_str(), file(to.c_str()).c_str()) != 0)
    fail("journal.db" + from + " cannot be renamed: " + std::strerror(errno));
  const FileHandle folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0)
    fail(std::string("cannot be written: ") + std::strerror(errno));
}

/// Puts journal.db.salvaged in the place of journal.db: once it is there, it is whole and
/// everything else is done. Whoever comes next goes on here, wherever this ended. Returns the name
/// of the old file.
std::string SqliteStore::put_salvaged_in_place() {
  const bool database = fs::exists(file()), log = fs::exists(file("-wal"));
  std::string aside = ".damaged";
  for (int i = 2; (database && fs::exists(file(aside.c_str()))) ||
                  (log && fs::exists(file((aside + "-wal").c_str())));
       ++i)
    aside = fmt::format(".damaged-{}", i);
  // First: SQLite would read it into the new file.
  if (log) move("-wal", aside + "-wal");
  if (database) move("", aside);
  move(".salvaged", "");
  return "journal.db" + aside;
}

void SqliteStore::read_past() {
  auto& tables = *open_->tables;
  const auto& acks = anew_ ? *anew_ : acks_->acks();
  previous_run_.id = tables.get("id").value_or("");
  previous_run_.last_job = std::max(number(kLastJob).value_or(0), acks.last_job);
  previous_run_.pid = static_cast<std::uint32_t>(number("pid").value_or(0));
  previous_run_.stopped = tables.get("end").value_or("") == kStopped;
  unmarked_ = true;
  if (!acks_->there() && previous_run_.last_job == 0) {
    // A new journal: without room for it there is none.
    acks_->rewrite(*std::exchange(anew_, std::nullopt));
    mark_running();
  }
}

void SqliteStore::mark_running() {
  auto& database = open_->database;
  try {
    database.run("PRAGMA synchronous = FULL");
    database.run("BEGIN IMMEDIATE");
    open_->tables->set("pid", std::to_string(getpid()));
    open_->tables->set("end", kRunning);
    open_->tables->set(kLastJob, std::to_string(previous_run_.last_job));
    database.run("COMMIT");
    unmarked_ = false;
  } catch (const SqliteError& error) {
    const std::string why = error.what();
    if (database.in_transaction()) database.run("ROLLBACK");
    fail("journal.db cannot be written: " + why);
  }
}

void SqliteStore::catch_up() {
  if (unmarked_) mark_running();
  if (anew_) {
    acks_->rewrite(*anew_);
    anew_.reset();
  }
  if (!unwanted_.empty()) drop_unwanted();
  // Oldest first: what is below the highest number and not there counts as forgotten.
  for (; !unacked_.empty(); unacked_.erase(unacked_.begin())) {
    acks_->reserve();
    acks_->accepted(*unacked_.begin(), number(kKept).value_or(0));
  }
  for (; !unnamed_.empty(); unnamed_.pop_back()) {
    acks_->reserve();
    acks_->named(unnamed_.back());
  }
}

void SqliteStore::drop_unwanted() {
  auto& database = open_->database;
  try {
    database.run("PRAGMA synchronous = FULL");
    database.run("BEGIN IMMEDIATE");
    for (const auto id : unwanted_) {
      Change change;
      change.kind = Change::Kind::forgotten;
      change.job = id;
      open_->tables->write(change);
    }
    database.run("COMMIT");
    unwanted_.clear();
  } catch (const SqliteError& error) {
    const std::string why = error.what();
    try {
      if (database.in_transaction()) database.run("ROLLBACK");
    } catch (const SqliteError&) {
      // It was rolled back by itself.
    }
    fail("forgotten jobs cannot be deleted from journal.db: " + why);
  }
}

std::vector<Record> SqliteStore::load() {
  try {
    std::vector<Record> records;
    const auto& acks = anew_ ? *anew_ : acks_->acks();
    for (const auto id : open_->tables->ids()) {
      const bool known = acks.jobs.contains(id);
      if (!known && id <= acks.last_job) {  // it was forgotten
        unwanted_.insert(id);
        continue;
      }
      auto record = open_->tables->read(id);
      if (!record || (!known && !record->damage.empty())) continue;  // a number that is none
      if (!known) unacked_.insert(id);
      previous_run_.last_job = std::max(previous_run_.last_job, id);
      records.push_back(std::move(*record));
    }
    find_lost(records);
    return records;
  } catch (const SqliteError& error) {
    fail("journal.db is damaged (" + std::string(error.what()) +
         "): --journal-salvage goes on with what can be read of it");
  }
}

void SqliteStore::find_lost(std::vector<Record>& records) {
  std::vector<jobs::JobId> gone, endless;
  const auto& acks = anew_ ? *anew_ : acks_->acks();
  std::map<jobs::JobId, Record*> by_id;
  for (auto& record : records)
    by_id[record.id] = &record;
  std::vector<Record> missing;
  for (const auto& [id, acked] : acks.jobs) {
    const auto found = by_id.find(id);
    const auto how = what_was_said(acked);
    if (found == by_id.end()) {
      auto& record = missing.emplace_back();
      record.id = id;
      record.lost = "it had " + how + ", and the journal has lost it";
      record.cancelled = acked.end == JobState::cancelled;
      if (!acked.named) gone.push_back(id);
      continue;
    }
    Record& record = *found->second;
    const auto facts = facts_in(record);
    if (!acked.end || (facts && has_ended(facts->state))) continue;
    record.cancelled = acked.end == JobState::cancelled;
    record.lost = acked.result_kept
                      ? "it had " + how + ", and the journal has lost what it ended with"
                      : "it had " + how + ", and there was no room to keep what it ended with";
    if (!acked.named && acked.result_kept) endless.push_back(id);
  }
  for (auto& record : missing)
    records.push_back(std::move(record));
  std::ranges::sort(records, {}, &Record::id);
  if (!gone.empty())
    note("jobs that were acknowledged are not in journal.db any more, and are listed as failed: " +
         list_text(gone));
  if (!endless.empty())
    note("what these jobs ended with is not in journal.db any more; they are listed as failed: " +
         list_text(endless));
  unnamed_.insert(unnamed_.end(), gone.begin(), gone.end());
  unnamed_.insert(unnamed_.end(), endless.begin(), endless.end());
}

void SqliteStore::apply(const Change& change) {
  catch_up();
  using Kind = Change::Kind;
  auto& database = open_->database;
  // Of files that were removed, or put elsewhere, the next controller knows nothing.
  if (change.must_last() && (!open_->is_at(file()) || !acks_->is_there()))
    fail("journal.db or acknowledged was removed or replaced while it was written");
  const bool acked = change.must_last() || change.kind == Kind::forgotten;
  const auto kept = acks_->acks().kept + 1;
  if (acked) acks_->reserve();
  // First, so that nothing is missed that is gone on purpose.
  if (change.kind == Kind::forgotten) acks_->forgotten(change.job);
  try {
    // What only moves a job on may be lost with the machine's power, not with the process.
    database.run(change.must_last() ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL");
    database.run("BEGIN IMMEDIATE");
    open_->tables->write(change);
    if (change.kind == Kind::accepted) open_->tables->set(kLastJob, std::to_string(change.job));
    if (change.must_last()) open_->tables->set(kKept, std::to_string(kept));
    if (change.kind == Kind::forgotten)
      open_->tables->set(kForgotten, std::to_string(acks_->acks().newest));
    database.run("COMMIT");
    if (change.kind == Kind::forgotten) database.run("PRAGMA incremental_vacuum");
  } catch (const SqliteError& error) {
    const std::string why = error.what();
    try {
      if (database.in_transaction()) database.run("ROLLBACK");
    } catch (const SqliteError&) {
      // It was rolled back by itself.
    }
    const std::string what = fmt::format("job {} cannot be written: {}", change.job, why);
    if (error.too_large()) throw TooLarge("[journal] " + folder_ + ": " + what);
    fail(what);
  }
  if (change.kind == Kind::ended) acks_->ended(change.job, change.state, kept);
  if (change.kind == Kind::accepted) {
    try {
      acks_->accepted(change.job, kept);
    } catch (const std::runtime_error&) {
      // Nobody is told of it, so the next controller must not know it either.
      unwanted_.insert(change.job);
      try {
        drop_unwanted();
      } catch (const std::runtime_error&) {
        // It is tried again before the next change.
      }
      throw;
    }
  }
}

void SqliteStore::keep_bare_end(const Change& end) {
  if (!anew_ && acks_->is_there()) return acks_->ended_bare(end.job, end.state);
  fail("acknowledged cannot be written yet");
}

/// Moves the log into the database and truncates it. Where there is no room for that it is done
/// later.
void SqliteStore::cut_log() {
  cut_again_ = std::chrono::steady_clock::now() + kLongestWait;
  try {
    auto checkpoint = open_->database.prepare("PRAGMA wal_checkpoint(TRUNCATE)");
    checkpoint.run();
  } catch (const SqliteError&) {
    // What is wrong is said when the next change cannot be written.
  }
}

void SqliteStore::tidy(std::chrono::milliseconds quiet) {
  const bool idle = quiet >= kIdle;
  if (idle) catch_up();
  // What lies in the log is what one damaged byte can cost; but whoever comes while it is cut
  // waits.
  const auto log_bytes = size_of(file("-wal"));
  if (log_bytes == 0) return;
  const auto now = std::chrono::steady_clock::now();
  const bool due = log_bytes > kLongestLog || now > cut_again_;
  const bool overdue = log_bytes > 2 * kLongestLog || now > cut_again_ + kLongestWait;
  if (idle || overdue || (due && quiet >= kPause)) cut_log();
}

void SqliteStore::close() {
  try {
    catch_up();
    open_->database.run("PRAGMA synchronous = FULL");
    open_->tables->set("end", kStopped);
    cut_log();
  } catch (const SqliteError& error) {
    fail(std::string("its end cannot be written: ") + error.what());
  }
}

}  // namespace troupe::journal
