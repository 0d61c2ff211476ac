#include "transport/control/key_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/error_text.h"
#include "base/files.h"
#include "base/format.h"

namespace troupe::control {

namespace fs = std::filesystem;
namespace {

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw std::runtime_error("[keys] " + path.string() + ": " + why);
}

/// Opens a folder and checks who may write in it, which decides what its files say. The folder is
/// held open, so that it stays the one that was looked at; links were followed.
FileHandle open_folder(const fs::path& path) {
  FileHandle folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail(path, errno == ENOENT ? "is not there" : error_text(errno));
  struct stat info {};
  if (fstat(folder.get(), &info) != 0) fail(path, error_text(errno));
  if (info.st_uid != geteuid() && info.st_uid != 0) fail(path, "belongs to another user");
  if (info.st_mode & 022) fail(path, "other users can write in it; give it mode 0700");
  return folder;
}

/// A folder of this user alone, made where it is not there, with those on the way to it. Of what
/// was made, empty folders go again unless it is kept.
class PrivateFolder {
 public:
  explicit PrivateFolder(const fs::path& path) {
    try {
      make(path.has_filename() ? path : path.parent_path());  // "keys/"
    } catch (...) {
      undo();
      throw;
    }
  }
  ~PrivateFolder() { undo(); }
  PrivateFolder(const PrivateFolder&) = delete;
  PrivateFolder& operator=(const PrivateFolder&) = delete;

  void keep() { made_.clear(); }

 private:
  void make(const fs::path& path) {
    std::vector<fs::path> missing;
    std::error_code ignored;
    for (auto folder = path.parent_path(); !folder.empty() && !fs::exists(folder, ignored);
         folder = folder.parent_path())
      missing.push_back(folder);
    for (; !missing.empty(); missing.pop_back()) {
      if (mkdir(missing.back().c_str(), 0777) == 0) made_.push_back(missing.back());
    }
    if (mkdir(path.c_str(), 0700) == 0)
      made_.push_back(path);
    else if (errno != EEXIST)
      fail(path, "cannot be made: " + error_text(errno));
    if (const auto why = why_not_private(path)) fail(path, *why);
  }
  void undo() {
    for (; !made_.empty(); made_.pop_back())
      ::rmdir(made_.back().c_str());
  }

  std::vector<fs::path> made_;  // the outermost first
};

/// Returns the text for a missing file: the command that makes it.
std::string missing_text(const fs::path& path) {
  const auto name = path.filename();
  if (name == "server.pub" || name == "client.key")
    return "is not there: `troupe keys add NAME`, where the cluster runs, makes a client's folder";
  return "is not there: `troupe keys --keys " + path.parent_path().string() +
         "` makes a cluster's keys";
}

/// Other users must not be able to read it where it holds a secret, nor to write it or to put
/// another in its place anyway.
std::string read_file(const fs::path& path, std::size_t limit, bool secret) {
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  if (!fs::exists(parent, ignored)) fail(path, missing_text(path));
  const FileHandle folder = open_folder(parent);
  const FileHandle file(
      openat(folder.get(), path.filename().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file) fail(path, errno == ENOENT ? missing_text(path) : error_text(errno));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) fail(path, error_text(errno));
  if (!S_ISREG(info.st_mode)) fail(path, "is not a file");
  if (info.st_uid != geteuid() && info.st_uid != 0) fail(path, "belongs to another user");
  if (secret && (info.st_mode & 077)) fail(path, "is open to other users; give it mode 0600");
  if (!secret && (info.st_mode & 022)) fail(path, "other users can write it; take that away");
  if (static_cast<std::size_t>(info.st_size) > limit) fail(path, "too long to be a file of keys");
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  const ssize_t got = pread(file.get(), text.data(), text.size(), 0);
  if (got < 0) fail(path, error_text(errno));
  text.resize(static_cast<std::size_t>(got));
  return text;
}

/// Whole or not at all.
void write_file(const fs::path& path, const std::string& text, bool may_replace) {
  const fs::path fresh = path.string() + ".new";
  ::unlink(fresh.c_str());
  {
    const FileHandle file(
        open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) fail(fresh, "cannot be written: " + error_text(errno));
    const bool whole =
        ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
        fsync(file.get()) == 0;
    if (!whole) {
      const int error = errno;
      ::unlink(fresh.c_str());
      fail(fresh, "cannot be written: " + error_text(error));
    }
  }
  const int moved =
      may_replace ? ::rename(fresh.c_str(), path.c_str()) : ::link(fresh.c_str(), path.c_str());
  const int error = errno;
  if (!may_replace || moved != 0) ::unlink(fresh.c_str());
  if (moved != 0 && error == EEXIST)
    fail(path,
         "is there already; --force overwrites it, and shuts out whoever has keys that go "
         "with it");
  if (moved != 0) fail(path, "cannot be written: " + error_text(error));
}

void refuse_existing(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(path, ignored)))
    fail(path,
         "is there already; --force overwrites it, and shuts out whoever has keys that go "
         "with it");
}

template <class Parse>
auto parsed(const fs::path& path, const std::string& text, Parse&& parse) {
  try {
    return parse(text);
  } catch (const std::runtime_error& error) {
    std::string why = error.what();
    if (why.starts_with("[keys] ")) why.erase(0, 7);
    fail(path, why);
  }
}

/// Locks the folder for a change of the list. If another process is changing it, throws.
FileHandle lock_folder(const fs::path& path) {
  FileHandle lock = open_folder(path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    fail(path, "another process is changing it; try again");
  return lock;
}

}  // namespace

void KeyFolder::make(bool force) const {
  const KeyPair server = make_key_pair();
  const KeyPair client = make_key_pair();
  PrivateFolder folder(path_);
  const FileHandle lock = lock_folder(path_);
  if (!force) {
    for (const char* name : {"server.key", "server.pub", "client.key", "clients"})
      refuse_existing(path_ / name);
  }
  write_file(path_ / "server.key", key_file_text(server), force);
  write_file(path_ / "server.pub", public_file_text(server.public_key), force);
  write_file(path_ / "client.key", key_file_text(client), force);
  write_file(clients_file(), allow_list_text({{"default", client.public_key}}), force);
  folder.keep();
}

KeyPair KeyFolder::server() const {
  const fs::path file = path_ / "server.key";
  return parsed(file, read_file(file, kMaxKeyFile, true), parse_key_file);
}

ClientKeys KeyFolder::client() const {
  const fs::path server = path_ / "server.pub";
  const fs::path own = path_ / "client.key";
  return {parsed(server, read_file(server, kMaxKeyFile, false), parse_public_file),
          parsed(own, read_file(own, kMaxKeyFile, true), parse_key_file), path_.string()};
}

std::vector<AllowedClient> KeyFolder::clients() const {
  return parsed(clients_file(), read_file(clients_file(), kMaxAllowList, false), parse_allow_list);
}

void KeyFolder::add(const AllowedClient& client) const {
  if (!is_client_name(client.name))
    throw std::runtime_error("[keys] a client's name has 1 to 64 of A-Z a-z 0-9 . _ -");
  if (!is_key(client.public_key))
    throw std::runtime_error("[keys] " + client.name + ": a public key has 40 characters of Z85");
  const FileHandle lock = lock_folder(path_);
  auto list = clients();
  for (const auto& other : list) {
    if (other.name == client.name) fail(clients_file(), client.name + " is there already");
    if (other.public_key == client.public_key)
      fail(clients_file(), "the key of " + client.name + " is there already, as " + other.name);
  }
  list.push_back(client);
  const std::string text = allow_list_text(list);
  if (text.size() > kMaxAllowList) fail(clients_file(), "the list is full");
  write_file(clients_file(), text, true);
}

void KeyFolder::set_role(const std::string& name, ClientRole role) const {
  const FileHandle lock = lock_folder(path_);
  auto list = clients();
  const auto client = std::ranges::find(list, name, &AllowedClient::name);
  if (client == list.end()) fail(clients_file(), "there is no client \"" + name + "\"");
  client->role = role;
  write_file(clients_file(), allow_list_text(list), true);
}

void KeyFolder::remove(const std::string& name) const {
  const FileHandle lock = lock_folder(path_);
  auto list = clients();
  if (std::erase_if(list, [&](const auto& client) { return client.name == name; }) == 0)
    fail(clients_file(), "there is no client \"" + name + "\"");
  write_file(clients_file(), allow_list_text(list), true);
}

std::string KeyFolder::make_client(const fs::path& folder, bool force) const {
  const KeyPair pair = make_key_pair();
  const std::string server_key = server().public_key;
  PrivateFolder made(folder);
  if (!force) {
    refuse_existing(folder / "client.key");
    refuse_existing(folder / "server.pub");
  }
  write_file(folder / "client.key", key_file_text(pair), force);
  write_file(folder / "server.pub", public_file_text(server_key), force);
  made.keep();
  return pair.public_key;
}

AllowList::AllowList(fs::path file) : file_(std::move(file)) {}

void AllowList::add(std::string public_key, std::string name, ClientRole role) {
  own_.push_back({std::move(name), std::move(public_key), role});
}

void AllowList::refresh() {
  struct stat info {};
  if (stat(file_.c_str(), &info) != 0) {
    listed_.clear();
    seen_.clear();
    return;
  }
  const std::string now = fmt::format("{}.{}.{}.{}", info.st_ino, info.st_size, info.st_mtim.tv_sec,
                                      info.st_mtim.tv_nsec);
  if (now == seen_) return;
  listed_.clear();
  seen_ = now;
  try {
    listed_ = parsed(file_, read_file(file_, kMaxAllowList, false), parse_allow_list);
  } catch (const std::runtime_error&) {
    seen_.clear();
  }
}

std::optional<AllowedClient> AllowList::client_of(const std::string& public_key) {
  const auto find = [&](const auto& list) -> std::optional<AllowedClient> {
    for (const auto& client : list) {
      if (client.public_key == public_key) return client;
    }
    return std::nullopt;
  };
  if (public_key.empty()) return std::nullopt;
  if (const auto own = find(own_)) return own;
  refresh();
  return find(listed_);
}

namespace {

constexpr std::chrono::seconds kKeysLockDeadline{3};

/// Locks the folder. Of two processes that make the keys at once, one waits and finds them made.
FileHandle lock_folder(const std::string& folder) {
  FileHandle lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto until = std::chrono::steady_clock::now() + kKeysLockDeadline;
  while (lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error("[keys] " + folder + ": another process is changing it; try again");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!lock) throw std::runtime_error("[keys] " + folder + ": " + std::strerror(errno));
  return lock;
}

/// Throws unless only this user could have put into the folder what lies in it.
void check_runtime_folder(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    throw std::runtime_error(folder + ": is not a folder");
  }
  if (info.st_uid != getuid()) throw std::runtime_error(folder + ": belongs to another user");
  if ((info.st_mode & 022) != 0) {
    throw std::runtime_error(folder +
                             ": other users can write in it, and what is there may be theirs; "
                             "remove it, or empty it and give it mode 0700");
  }
  if ((info.st_mode & 077) != 0 && chmod(folder.c_str(), 0700) != 0) {
    throw std::runtime_error(folder +
                             ": is open to others and cannot be closed: " + std::strerror(errno));
  }
}

/// Returns whether all keys are there.
bool made(const KeyFolder& keys) {
  std::error_code ignored;
  return fs::exists(keys.clients_file(), ignored);  // the last of all
}

}  // namespace

std::string runtime_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/troupe";
  return fmt::format("/tmp/troupe-{}", getuid());
}

std::string make_runtime_folder() {
  const std::string folder = runtime_folder();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::runtime_error(folder + ": cannot be made: " + std::strerror(errno));
  }
  check_runtime_folder(folder);
  return folder;
}

KeyFolder own_keys() {
  const std::string runtime = make_runtime_folder();
  const KeyFolder keys(fs::path(runtime) / "keys");
  if (made(keys)) return keys;
  const FileHandle lock = lock_folder(runtime);
  if (!made(keys)) keys.make(true);
  return keys;
}

std::optional<ClientKeys> keys_for(const Endpoint& endpoint, const std::string& folder) {
  if (endpoint.ipc || folder == kNoKeys) return std::nullopt;
  if (!folder.empty()) return KeyFolder(folder).client();
  if (!endpoint.loopback()) {
    throw std::runtime_error(
        "[control] " + endpoint.text +
        ": without keys anybody could listen there: give --keys DIR or set TROUPE_KEYS (`troupe "
        "keys add` makes them where the cluster runs); --keys none trusts whoever it is");
  }
  const std::string runtime = runtime_folder();
  const KeyFolder own(fs::path(runtime) / "keys");
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(runtime, ignored))) check_runtime_folder(runtime);
  if (!made(own)) {
    throw NoOwnKeys("[control] " + endpoint.text + ": there are none of this user's own keys in " +
                    own.path().string() + ", which a cluster there makes as it starts. " +
                    kWithoutOwnKeys);
  }
  auto keys = own.client();
  keys.own_users = true;
  return keys;
}

}  // namespace troupe::control
