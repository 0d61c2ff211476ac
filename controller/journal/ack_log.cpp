#include "controller/journal/ack_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "controller/journal/record.h"

namespace troupe::journal {
namespace {

/// Words of a record: number, what happened, job, journal, the newest change that the database then
/// held, checksum of these; little-endian.
using Words = std::array<std::uint64_t, 6>;
constexpr std::size_t kRecordBytes = 48;
/// Number of records by which the file grows at a time; it is written anew when it has more than
/// these.
constexpr std::size_t kStride = 1024;
constexpr std::size_t kLongest = 16 * kStride;

enum class What : std::uint64_t { begin = 1, accepted = 2, ended = 3, named = 4, forgotten = 5 };
constexpr std::uint64_t kResultKept = 1u << 16;

std::uint64_t word(What what, std::uint64_t detail = 0) {
  return static_cast<std::uint64_t>(what) | detail << 8;
}

std::string encode(Words words) {
  std::string bytes;
  const auto put = [&](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte)
      bytes.push_back(static_cast<char>(value >> (8 * byte)));
  };
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    put(words[i]);
  put(control::blob_checksum(bytes.data(), bytes.size()));
  return bytes;
}

std::optional<Words> decode(std::string_view bytes) {
  Words words{};
  for (std::size_t i = 0; i < kRecordBytes; ++i)
    words[i / 8] |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i]))
                    << (8 * (i % 8));
  if (words.back() != control::blob_checksum(bytes.data(), kRecordBytes - 8)) return std::nullopt;
  return words;
}

bool blank(std::string_view bytes) {
  return std::ranges::all_of(bytes, [](char c) { return c == 0; });
}

void take(Acks& acks, const Words& words) {
  const auto detail = words[1] >> 8;
  const jobs::JobId job = words[2];
  acks.kept = std::max(acks.kept, words[4]);
  switch (static_cast<What>(words[1] & 0xff)) {
    case What::begin:
      acks.format = static_cast<int>(detail);
      acks.last_job = std::max(acks.last_job, job);
      return;
    case What::accepted:
      acks.jobs[job];
      break;
    case What::ended:
      acks.jobs[job].end = static_cast<JobState>(detail & 0xff);
      acks.jobs[job].result_kept = (words[1] & kResultKept) != 0;
      break;
    case What::named:
      acks.jobs[job].named = true;
      break;
    case What::forgotten:
      acks.jobs.erase(job);
      break;
  }
  acks.last_job = std::max(acks.last_job, job);
}

}  // namespace

Acks read_acks(std::string_view bytes) {
  Acks acks;
  std::vector<std::optional<Words>> slots;
  for (std::size_t at = 0; at + kRecordBytes <= bytes.size(); at += kRecordBytes)
    slots.push_back(decode(bytes.substr(at, kRecordBytes)));
  // A record is in its place when its number says so; most of them are right.
  std::map<std::uint64_t, std::size_t> votes;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i]) ++votes[(*slots[i])[0] - i];
  }
  const auto first = std::ranges::max_element(
      votes, [](const auto& a, const auto& b) { return a.second < b.second; });
  for (std::size_t i = 0; first != votes.end() && i < slots.size(); ++i) {
    if (!slots[i] || (*slots[i])[0] - i != first->first) continue;
    acks.damaged += i - acks.slots;
    acks.slots = i + 1;
    acks.newest = (*slots[i])[0];
    acks.journal = (*slots[i])[3];
    take(acks, *slots[i]);
  }
  acks.torn = !blank(bytes.substr(acks.slots * kRecordBytes));
  return acks;
}

void AckLog::fail(const std::string& what) const {
  throw std::runtime_error("[journal] " + folder_ + ": acknowledged cannot be " + what + ": " +
                           std::generic_category().message(errno));
}

void AckLog::write_at(int file, std::size_t offset, std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail("written");
    offset += static_cast<std::size_t>(put);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  if (::fdatasync(file) != 0) fail("written");
}

std::string AckLog::read_all() const {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0) fail("read");
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t got = 0;
  while (got < bytes.size()) {
    const auto more =
        ::pread(file_.get(), bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) fail("read");
    if (more == 0) break;
    got += static_cast<std::size_t>(more);
  }
  bytes.resize(got);
  return bytes;
}

AckLog::AckLog(const std::string& folder) : folder_(folder) {
  file_ = FileHandle(::open((folder + "/acknowledged").c_str(), O_RDWR | O_CLOEXEC));
  if (!file_ && errno != ENOENT) fail("opened");
  if (!file_) return;
  const auto bytes = read_all();
  acks_ = read_acks(bytes);
  room_ = bytes.size() / kRecordBytes;
}

void AckLog::rewrite(Acks acks) {
  const auto old_newest = acks_.newest;
  acks.newest = std::max(acks.newest, old_newest);
  acks.slots = acks.damaged = 0;
  acks.torn = false;
  std::string bytes;
  const auto add = [&](std::uint64_t what, jobs::JobId job) {
    bytes += encode({++acks.newest, what, job, acks.journal, acks.kept, 0});
    ++acks.slots;
  };
  add(word(What::begin, static_cast<std::uint64_t>(acks.format)), acks.last_job);
  for (const auto& [job, acked] : acks.jobs) {
    add(word(What::accepted), job);
    if (acked.named) add(word(What::named), job);
    if (acked.end)
      add(word(What::ended, static_cast<std::uint64_t>(*acked.end)) |
              (acked.result_kept ? kResultKept : 0),
          job);
  }
  const std::size_t room = (acks.slots + acks.jobs.size()) / kStride * kStride + kStride;
  bytes.resize(room * kRecordBytes);
  const std::string fresh = folder_ + "/acknowledged.new";
  ::unlink(fresh.c_str());
  FileHandle file(::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) fail("written");
  try {
    write_at(file.get(), 0, bytes);
    if (::rename(fresh.c_str(), (folder_ + "/acknowledged").c_str()) != 0) fail("written");
  } catch (const std::runtime_error&) {
    ::unlink(fresh.c_str());
    throw;
  }
  file_ = std::move(file);
  acks_ = std::move(acks);
  room_ = room;
  const FileHandle folder(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder || ::fsync(folder.get()) != 0) fail("written");
}

bool AckLog::is_there() const {
  struct stat own {};
  struct stat there {};
  return ::fstat(file_.get(), &own) == 0 &&
         ::stat((folder_ + "/acknowledged").c_str(), &there) == 0 && own.st_ino == there.st_ino &&
         own.st_dev == there.st_dev;
}

void AckLog::reserve() {
  if (acks_.slots > kLongest) {
    try {
      return rewrite(acks_);
    } catch (const std::runtime_error&) {
      // As long as there is room in the old one.
    }
  }
  const auto ends = static_cast<std::size_t>(
      std::ranges::count_if(acks_.jobs, [](const auto& job) { return !job.second.end; }));
  if (acks_.slots + ends + 2 <= room_) return;
  write_at(file_.get(), room_ * kRecordBytes, std::string(kStride * kRecordBytes, '\0'));
  room_ += kStride;
}

void AckLog::append(std::uint64_t what, jobs::JobId job, std::uint64_t kept) {
  const Words words{acks_.newest + 1, what, job, acks_.journal, kept, 0};
  write_at(file_.get(), acks_.slots * kRecordBytes, encode(words));
  ++acks_.newest;
  ++acks_.slots;
  room_ = std::max(room_, acks_.slots);
  take(acks_, words);
}

void AckLog::accepted(jobs::JobId job, std::uint64_t kept) {
  append(word(What::accepted), job, kept);
}

void AckLog::ended(jobs::JobId job, JobState end, std::uint64_t kept) {
  this->end(job, end, true, kept);
}

void AckLog::ended_bare(jobs::JobId job, JobState end) {
  this->end(job, end, false, acks_.kept);
}

void AckLog::end(jobs::JobId job, JobState end, bool result_kept, std::uint64_t kept) {
  const auto known = acks_.jobs.find(job);
  if (known != acks_.jobs.end() && known->second.end == end &&
      known->second.result_kept == result_kept)
    return;
  append(word(What::ended, static_cast<std::uint64_t>(end)) | (result_kept ? kResultKept : 0), job,
         kept);
}

void AckLog::named(jobs::JobId job) {
  append(word(What::named), job, acks_.kept);
}

void AckLog::forgotten(jobs::JobId job) {
  if (acks_.jobs.contains(job)) append(word(What::forgotten), job, acks_.kept);
}

}  // namespace troupe::journal
