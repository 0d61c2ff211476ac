#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

#include "tests/support/doctest.h"
#include "tests/support/text.h"

namespace troupe::control {
namespace fs = std::filesystem;
namespace {

template <class F>
std::string error_from(F&& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

int mode_of(const fs::path& path) {
  struct stat info {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_mode & 0777;
}

}  // namespace

TEST_CASE("a folder of keys is private, complete and not overwritten") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  CHECK(mode_of(keys.path()) == 0700);
  for (const char* name : {"server.key", "server.pub", "client.key", "clients"})
    CHECK(mode_of(keys.path() / name) == 0600);
  const KeyPair server = keys.server();
  const ClientKeys client = keys.client();
  CHECK(is_key(server.public_key));
  CHECK(is_key(server.secret_key));
  CHECK(client.server_key == server.public_key);
  CHECK(client.own.public_key != server.public_key);
  CHECK(keys.clients() == std::vector<AllowedClient>{{"default", client.own.public_key}});

  CHECK(troupe::testing::has(error_from([&] { keys.make(false); }), "--force"));
  CHECK(keys.server().secret_key == server.secret_key);
  keys.make(true);
  CHECK(keys.server().secret_key != server.secret_key);
}

TEST_CASE("where keys cannot be made, no folder that was made for them stays") {
  const IpcFolder scratch;
  const fs::path impossible = scratch.path() / "on" / "the way" / std::string(300, 'x');
  CHECK(troupe::testing::has(error_from([&] { KeyFolder(impossible).make(false); }),
                             "cannot be made"));
  CHECK_FALSE(fs::exists(scratch.path() / "on"));
  const KeyFolder keys(scratch.path() / "a" / "keys/");
  keys.make(false);
  CHECK(mode_of(keys.path()) == 0700);
  CHECK(troupe::testing::has(error_from([&] { keys.make_client(impossible, false); }),
                             "cannot be made"));
  CHECK_FALSE(fs::exists(scratch.path() / "on"));
  // Nor goes one that was there before, empty or not.
  fs::create_directory(scratch.path() / "on");
  CHECK(troupe::testing::has(error_from([&] { keys.make_client(impossible, false); }),
                             "cannot be made"));
  CHECK(fs::is_empty(scratch.path() / "on"));
}

TEST_CASE("what is there in part is not overwritten either") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const std::string before = keys.server().secret_key;
  fs::remove(keys.path() / "client.key");
  CHECK(troupe::testing::has(error_from([&] { keys.make(false); }), "server.key"));
  CHECK(keys.server().secret_key == before);
}

TEST_CASE("clients are added and taken away by name") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const KeyFolder alice(scratch.path() / "alice");
  const std::string key = keys.make_client(alice.path(), false);
  keys.add({"alice", key});
  CHECK(alice.client().server_key == keys.server().public_key);
  CHECK(alice.client().own.public_key == key);
  CHECK(keys.clients().size() == 2);
  CHECK(troupe::testing::has(error_from([&] {
                               keys.add({"alice", make_key_pair().public_key});
                             }),
                             "alice"));
  CHECK(troupe::testing::has(error_from([&] { keys.add({"bob", key}); }), "as alice"));
  CHECK(troupe::testing::has(error_from([&] {
                               keys.add({"../bob", make_key_pair().public_key});
                             }),
                             "name"));
  CHECK(troupe::testing::has(error_from([&] { keys.add({"bob", "short"}); }), "40 characters"));
  keys.remove("alice");
  CHECK(keys.clients().size() == 1);
  CHECK(troupe::testing::has(error_from([&] { keys.remove("alice"); }), "no client \"alice\""));
}

TEST_CASE("secrets that others may read, and files that are none, are refused by name") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const fs::path secret = keys.path() / "server.key";
  fs::permissions(secret, fs::perms::group_read, fs::perm_options::add);
  CHECK(troupe::testing::has(error_from([&] { keys.server(); }),
                             "server.key: is open to other users"));
  fs::permissions(secret, fs::perms::owner_read | fs::perms::owner_write);
  CHECK_NOTHROW(keys.server());
  std::ofstream(keys.path() / "server.pub") << "troupe-key 1\npublic abc\n";
  CHECK(troupe::testing::has(error_from([&] { keys.client(); }), "server.pub: line 2"));
  std::ofstream(secret) << std::string(kMaxKeyFile + 1, 'x');
  CHECK(troupe::testing::has(error_from([&] { keys.server(); }), "too long"));
  const KeyFolder nowhere(scratch.path() / "nowhere");
  CHECK(troupe::testing::has(error_from([&] { nowhere.client(); }), "`troupe keys add NAME`"));
  CHECK(troupe::testing::has(
      error_from([&] { nowhere.clients(); }),
      "clients: is not there: `troupe keys --keys " + nowhere.path().string() + "` makes"));
  fs::permissions(keys.clients_file(), fs::perms::others_write, fs::perm_options::add);
  CHECK(troupe::testing::has(error_from([&] { keys.clients(); }), "other users can write it"));
}

TEST_CASE("a folder that others may write in, and what is another user's, is refused") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const std::string public_key = make_key_pair().public_key;
  const auto all = [&] {
    return std::vector<std::string>{error_of([&] { keys.server(); }),
                                    error_of([&] { keys.client(); }),
                                    error_of([&] { keys.clients(); }), error_of([&] {
                                      keys.add({"new", public_key});
                                    }),
                                    error_of([&] { keys.remove("default"); })};
  };
  for (const auto mode : {0777, 01777, 0720, 0702}) {
    REQUIRE(chmod(keys.path().c_str(), static_cast<mode_t>(mode)) == 0);
    for (const auto& error : all())
      CHECK(troupe::testing::has(error, keys.path().string() + ": other users can write in it"));
  }
  REQUIRE(chmod(keys.path().c_str(), 0700) == 0);
  const auto allowed = keys.client().own.public_key;
  AllowList list(keys.clients_file());
  CHECK(list.client_of(allowed)->name == "default");
  REQUIRE(chmod(keys.path().c_str(), 0777) == 0);
  AllowList open(keys.clients_file());
  CHECK_FALSE(open.client_of(allowed));
  REQUIRE(chmod(keys.path().c_str(), 0700) == 0);
  if (geteuid() != 0) return;
  REQUIRE(chown((keys.path() / "server.pub").c_str(), 65534, 65534) == 0);
  CHECK(troupe::testing::has(error_of([&] { keys.client(); }),
                             "server.pub: belongs to another user"));
  REQUIRE(chown(keys.clients_file().c_str(), 65534, 65534) == 0);
  CHECK(
      troupe::testing::has(error_of([&] { keys.clients(); }), "clients: belongs to another user"));
  REQUIRE(chown(keys.path().c_str(), 65534, 65534) == 0);
  CHECK(troupe::testing::has(error_of([&] { keys.server(); }), "keys: belongs to another user"));
}

TEST_CASE("roles stand in the list, are changed by name, and without one everything is allowed") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const auto alice = make_key_pair().public_key;
  keys.add({"alice", alice, ClientRole::own_jobs});
  CHECK(keys.clients().front().role == ClientRole::operate);
  CHECK(keys.clients().back() == AllowedClient{"alice", alice, ClientRole::own_jobs});
  keys.set_role("alice", ClientRole::all_jobs);
  AllowList list(keys.clients_file());
  CHECK(list.client_of(alice)->role == ClientRole::all_jobs);
  CHECK(troupe::testing::has(error_of([&] { keys.set_role("bob", ClientRole::operate); }),
                             "no client \"bob\""));
  // As written before there were roles.
  const auto old = parse_allow_list("troupe-clients 1\nalice " + alice + "\n");
  CHECK(old == std::vector<AllowedClient>{{"alice", alice, ClientRole::operate}});
  for (const char* wrong : {" king", " ", " operate ", " operate own-jobs", " Operate"}) {
    CAPTURE(wrong);
    CHECK(troupe::testing::has(
        error_of([&] { parse_allow_list("troupe-clients 1\nalice " + alice + wrong + "\n"); }),
        "line 2 is not \"NAME KEY ROLE\""));
  }
  for (const auto role : {ClientRole::own_jobs, ClientRole::all_jobs, ClientRole::operate})
    CHECK(role_from(to_string(role)) == role);
}

TEST_CASE("no error shows a secret") {
  const KeyPair pair = make_key_pair();
  for (const std::string& text :
       {"troupe-key 1\npublic " + pair.public_key + "\nsecret " + pair.secret_key + "x\n",
        "troupe-key 2\nsecret " + pair.secret_key + "\n",
        "troupe-key 1\nsecret " + pair.secret_key + "\n"})
    CHECK_FALSE(troupe::testing::has(error_from([&] { parse_key_file(text); }),
                                     pair.secret_key.substr(0, 8)));
  const ClientKeys keys{make_key_pair().public_key, pair, "here"};
  CHECK(client_keys_from(to_text(keys), "there").own.secret_key == pair.secret_key);
  CHECK_FALSE(
      troupe::testing::has(error_from([&] { client_keys_from(to_text(keys) + " ", "there"); }),
                           pair.secret_key.substr(0, 8)));
}

TEST_CASE("the allow-list follows its file; unreadable it allows nobody") {
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  const std::string key = keys.client().own.public_key;
  AllowList list(keys.clients_file());
  list.add("own key", "actors", ClientRole::all_jobs);
  CHECK(list.client_of(key)->name == "default");
  CHECK_FALSE(list.client_of(""));
  CHECK_FALSE(list.client_of(make_key_pair().public_key));
  keys.remove("default");
  CHECK_FALSE(list.client_of(key));
  keys.add({"again", key});
  CHECK(list.client_of(key)->name == "again");
  std::ofstream(keys.clients_file()) << "nonsense";
  CHECK_FALSE(list.client_of(key));
  fs::remove(keys.clients_file());
  CHECK_FALSE(list.client_of(key));
  CHECK(list.client_of("own key")->name == "actors");
  CHECK(list.client_of("own key")->role == ClientRole::all_jobs);
}

}  // namespace troupe::control
