// The keys by which a cluster on loopback and its clients know each other for the same user's.
#include "transport/control/key_folder.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "tests/support/variable.h"

namespace troupe::control {
namespace fs = std::filesystem;
namespace {

/// XDG_RUNTIME_DIR, for as long as this lives.
class Runtime {
 public:
  fs::path path() const { return scratch_.path(); }

 private:
  IpcFolder scratch_;
  testing::Variable set_{"XDG_RUNTIME_DIR", scratch_.path().string()};
};

template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

std::optional<ClientKeys> shown_at(const std::string& endpoint, const std::string& folder = "") {
  return keys_for(parse_endpoint(endpoint), folder);
}

}  // namespace

TEST_CASE("many who make this user's keys at once have the same") {
  const Runtime runtime;
  std::vector<std::string> seen(8);
  {
    std::vector<std::jthread> threads;
    for (auto& key : seen)
      threads.emplace_back([&key] { key = own_keys().client().server_key; });
  }
  for (const auto& key : seen)
    CHECK(key == own_keys().server().public_key);
  struct stat info {};
  REQUIRE(stat((runtime.path() / "troupe/keys/client.key").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
}

TEST_CASE("what a client shows, by endpoint") {
  const Runtime runtime;
  CHECK_FALSE(shown_at("ipc:///run/x/y"));
  // A client makes none: it would show what no cluster knows.
  const auto folder = runtime.path() / "troupe";
  for (const bool there : {false, true}) {
    CHECK_THROWS_AS(shown_at("tcp://127.0.0.1:7"), NoOwnKeys);
    const auto none = error_of([] { shown_at("tcp://127.0.0.1:7"); });
    CHECK(troupe::testing::has(
        none, "there are none of this user's own keys in " + (folder / "keys").string()));
    CHECK(troupe::testing::has(none, "else it is another user's"));
    CHECK(fs::exists(folder) == there);
    make_runtime_folder();
  }
  REQUIRE(chmod(folder.c_str(), 0777) == 0);
  CHECK(troupe::testing::has(error_of([] { shown_at("tcp://127.0.0.1:7"); }),
                             "other users can write in it"));
  REQUIRE(chmod(folder.c_str(), 0700) == 0);
  CHECK(fs::is_empty(folder));
  own_keys();
  for (const char* loopback :
       {"tcp://127.0.0.1:7", "tcp://127.3.2.1:7", "tcp://localhost:7", "tcp://[::1]:7"}) {
    const auto keys = shown_at(loopback);
    REQUIRE(keys);
    CHECK(keys->own_users);
    CHECK(keys->server_key == own_keys().server().public_key);
    CHECK_FALSE(shown_at(loopback, kNoKeys));
  }
  for (const char* elsewhere : {"tcp://10.0.0.1:7", "tcp://host:7", "tcp://[::]:7"}) {
    CHECK(
        troupe::testing::has(error_of([&] { shown_at(elsewhere); }), "anybody could listen there"));
    CHECK_FALSE(shown_at(elsewhere, kNoKeys));
  }
  const KeyFolder named(runtime.path() / "named");
  named.make(false);
  const auto keys = shown_at("tcp://127.0.0.1:7", named.path());
  REQUIRE(keys);
  CHECK_FALSE(keys->own_users);
  CHECK(keys->server_key == named.server().public_key);
}

TEST_CASE("a runtime folder that others may write in, or of another user, is refused") {
  const Runtime runtime;
  const auto folder = runtime.path() / "troupe";
  CHECK(make_runtime_folder() == folder.string());
  REQUIRE(chmod(folder.c_str(), 0755) == 0);  // nobody else can have put anything there
  make_runtime_folder();
  struct stat info {};
  REQUIRE(stat(folder.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  for (const auto mode : {0777, 0770, 0703, 01777}) {
    REQUIRE(chmod(folder.c_str(), static_cast<mode_t>(mode)) == 0);
    CHECK(troupe::testing::has(error_of([] { make_runtime_folder(); }),
                               "other users can write in it"));
    CHECK(troupe::testing::has(error_of([] { own_keys(); }), "other users can write in it"));
  }
  REQUIRE(chmod(folder.c_str(), 0700) == 0);
  if (geteuid() == 0) {
    REQUIRE(chown(folder.c_str(), 65534, 65534) == 0);
    CHECK(troupe::testing::has(error_of([] { make_runtime_folder(); }), "belongs to another user"));
  }
}

}  // namespace troupe::control
