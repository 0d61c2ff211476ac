#include "web/api_keys.h"

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <iterator>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe::web;

TEST_CASE("keys: found by their text, kept as hashes") {
  const NewKey one = make_key("one");
  const NewKey two = make_key("two");
  CHECK(one.key != two.key);
  CHECK(one.line.find(one.key) == std::string::npos);
  const auto keys = ApiKeys::parse("# ours\n\n" + one.line + "\n" + two.line +
                                   " share=team jobs=3 per-minute=60 role=operate\n");
  const auto found = keys.find("Bearer " + two.key);
  REQUIRE(found);
  CHECK(found->name == "two");
  CHECK(found->share == "team");
  CHECK(found->most_jobs == 3);
  CHECK(found->operate);
  CHECK(keys.find("bearer " + one.key)->share == "one");
  CHECK_FALSE(keys.find("bearer " + one.key)->operate);
  const std::vector<std::string> kWrong = {"",
                                           one.key,
                                           "Bearer",
                                           "Bearer ",
                                           "Basic " + one.key,
                                           "Bearer " + one.key + " ",
                                           "Bearer " + one.line.substr(11)};
  for (const std::string& wrong : kWrong)
    CHECK_FALSE(keys.find(wrong));
}

TEST_CASE("a line of the file that is wrong is named") {
  const std::string hash = make_key("a").line.substr(2);
  const std::pair<std::string, const char*> kWrong[] = {
      {"a\n", "line 1: a: no sha256"},
      {"a sha256:12\n", "line 1: a: no sha256"},
      {"\na sha256:" + std::string(64, 'g'), "line 2: a: the hash has other"},
      {"a/b " + hash, "line 1: the name is not of letters"},
      {"a " + hash + " jobs=0", "\"jobs=0\" is not"},
      {"a " + hash + " role=root", "\"role=root\" is not"},
      {"a " + hash + "\na " + make_key("b").line.substr(2), "line 2: a is there twice"},
      {"a " + hash + "\nb " + hash, "line 2: b has the same key as a"}};
  for (const auto& [text, why] : kWrong) {
    CAPTURE(text);
    std::string said;
    try {
      ApiKeys::parse(text);
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    CHECK(said.find(why) != std::string::npos);
  }
}

TEST_CASE("keys that are made at once are all kept, and a write that fails cuts nothing") {
  const troupe::testing::Scratch scratch;
  const auto file = scratch.path / "keys";
  const auto read = [&] {
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  std::vector<NewKey> made(12);
  std::vector<std::thread> makers;
  for (std::size_t i = 0; i < made.size(); ++i)
    makers.emplace_back([&, i] { made[i] = add_key(file, "key-" + std::to_string(i)); });
  for (auto& maker : makers)
    maker.join();
  const auto keys = ApiKeys::parse(read());
  for (const NewKey& one : made)
    CHECK(keys.find("Bearer " + one.key));
  CHECK_THROWS_WITH_AS(add_key(file, "key-3"), doctest::Contains("key-3 is there twice"),
                       std::runtime_error);
  // The file keeps its mode, and a link to it stays one.
  std::filesystem::permissions(file, std::filesystem::perms(0640));
  std::filesystem::create_symlink(file, scratch.path / "link");
  add_key(scratch.path / "link", "by-link");
  CHECK(std::filesystem::is_symlink(scratch.path / "link"));
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0640));
  const auto before = read();
  CHECK(ApiKeys::parse(before).find("Bearer " + made[0].key));
  // As on a full disk.
  const auto old_signal = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
  rlimit small = old;
  small.rlim_cur = 100;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_THROWS_WITH_AS(add_key(file, "more"), doctest::Contains("cannot be written"),
                       std::runtime_error);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_signal);
  CHECK(read() == before);
}

TEST_CASE("so many jobs a minute, some of them at once") {
  RateLimits limits;
  const KeyHolder caller{.name = "a", .share = {}, .per_minute = 60};
  const auto through = [&](double now) {
    int count = 0;
    for (int i = 0; i < 100; ++i)
      count += limits.ask(caller, now) == 0;
    return count;
  };
  CHECK(through(900) == 1);  // whoever has the gateway started anew gets no more by it
  CHECK(through(1000) == 10);
  CHECK(limits.ask(caller, 1000) == doctest::Approx(1));
  CHECK(limits.ask(caller, 1001) == 0);
  CHECK(limits.ask(caller, 1001) > 0);
  CHECK(limits.ask(KeyHolder{.name = "b", .share = {}}, 1000) == 0);
}

TEST_CASE("pages of other places may not ask") {
  const auto let_in = [](const char* host, const char* origin, const char* site = "",
                         bool loopback = true, std::vector<std::string> names = {}) {
    return foreign(host, origin, site, loopback, names).empty();
  };
  CHECK(let_in("127.0.0.1:7480", ""));
  CHECK(let_in("localhost:7480", "http://localhost:7480"));
  CHECK(let_in("[::1]:7480", "http://[::1]:7480", "same-origin"));
  CHECK_FALSE(let_in("127.0.0.1:7480", "http://127.0.0.1:8000"));
  CHECK_FALSE(let_in("127.0.0.1:7480", "null"));
  CHECK_FALSE(let_in("127.0.0.1:7480", "", "cross-site"));
  // A foreign name that leads here (DNS rebinding).
  CHECK_FALSE(let_in("evil.example:7480", "http://evil.example:7480"));
  CHECK_FALSE(let_in("127.evil.example", ""));
  CHECK(let_in("paint.example", "https://paint.example", "", true, {"paint.example"}));
  CHECK(let_in("paint.example", "", "", false));
  CHECK_FALSE(let_in("paint.example", "https://evil.example", "", false));
  // Without keys, beyond loopback: a rebound name would be let in as its own Origin.
  const auto without_keys = [](const char* host, std::vector<std::string> names = {}) {
    return foreign(host, "http://" + std::string(host), "", false, names, true).empty();
  };
  CHECK(without_keys("192.0.2.7:7480"));
  CHECK(without_keys("[2001:db8::7]:7480"));
  CHECK(without_keys("localhost:7480"));
  CHECK(without_keys("paint.example:7480", {"paint.example"}));
  CHECK_FALSE(without_keys("evil.example:7480"));
  CHECK_FALSE(without_keys("192.0.2.7.evil.example"));
}
