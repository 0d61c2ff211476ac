#include <atomic>
#include <fstream>
#include <numeric>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"
#include "tests/support/scratch.h"
#include "tests/user_actors/classes.h"
#include "tests/user_actors/small_cluster.h"

namespace troupe::testing {

using namespace std::chrono_literals;

TEST_CASE("a counter counts") {
  SmallCluster cluster;
  REQUIRE(cluster.refusal() == "");
  auto client = cluster.connect();
  auto counter = take(client.actors().spawn<Counter>({}, 0));
  CHECK(take(counter.call<&Counter::add>(1).wait(kPatience)) == 1);
  CHECK(take(counter.call<&Counter::add>(1).wait(kPatience)) == 2);
  CHECK(take(counter.call<&Counter::add>(1).wait(kPatience)) == 3);
  take(counter.call<&Counter::reset>().wait(kPatience));
  CHECK(take(counter.call<&Counter::value>().wait(kPatience)) == 0);
}

TEST_CASE("calls of one caller run in their order, with futures and large arguments among them") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto probe = take(actors.spawn<Probe>({}, "p"));
  auto counter = take(actors.spawn<Counter>({}, 100));
  std::vector<Future<Unit>> done;
  for (int i = 0; i < 2000; ++i) {
    if (i % 100 == 50) {
      done.push_back(probe.call<&Probe::append>(counter.call<&Counter::add>(1)));
    } else if (i % 100 == 70) {
      CHECK(probe.call<&Probe::sum>(Array::of(std::vector<float>(40'000, 1.f), {40'000})).valid());
    } else {
      done.push_back(probe.call<&Probe::append>(i));
    }
  }
  take(all_of(done, 2 * kPatience));
  std::vector<std::int64_t> expected;
  for (int i = 0; i < 2000; ++i) {
    if (i % 100 != 70) expected.push_back(i % 100 == 50 ? 101 + i / 100 : i);
  }
  CHECK(take(probe.call<&Probe::seen>().wait(kPatience)) == expected);
}

TEST_CASE("several callers each keep their order") {
  SmallCluster cluster;
  auto first = cluster.connect();
  auto probe = take(first.actors().spawn<Probe>({.name = "shared"}, "p"));
  std::vector<std::thread> threads;
  for (int caller = 0; caller < 3; ++caller) {
    threads.emplace_back([&, caller] {
      auto client = cluster.connect();
      auto mine = take(client.actors().get<Probe>("shared"));
      std::vector<Future<Unit>> done;
      for (int i = 0; i < 500; ++i)
        done.push_back(mine.call<&Probe::append>(caller * 1000 + i));
      take(all_of(done, 2 * kPatience));
    });
  }
  for (auto& thread : threads)
    thread.join();
  const auto seen = take(probe.call<&Probe::seen>().wait(kPatience));
  CHECK(seen.size() == 1500);
  std::map<std::int64_t, std::int64_t> last;
  for (const auto number : seen) {
    const auto [at, fresh] = last.emplace(number / 1000, number);
    CHECK((fresh || number == at->second + 1));
    at->second = number;
  }
}

TEST_CASE("an exception is a value for the caller, and the actor goes on") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  const auto failed = probe.call<&Probe::fail>("no\nmore").wait(kPatience);
  REQUIRE(!failed.ok());
  CHECK(failed.error().code == ErrorCode::exception);
  CHECK(failed.error().what == "troupe::testing::Probe (actor 1).fail: no");
  CHECK(take(probe.call<&Probe::name>().wait(kPatience)) == "p");
}

TEST_CASE("values of every kind go there and back") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  const auto points = take(
      probe.call<&Probe::points>(Point{1, 2}, std::vector<Point>{{3, 4}, {5, 6}}).wait(kPatience));
  CHECK(points == std::map<std::string, Point>{{"0", {3, 4}}, {"1", {5, 6}}, {"first", {1, 2}}});
}

TEST_CASE("a call has a deadline, and what has not begun by then never runs") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  const Scratch scratch;
  auto busy = probe.call<&Probe::await>(scratch / "go on");
  auto late = probe.within(100ms).call<&Probe::append>(7);
  const auto result = late.wait(kPatience);
  REQUIRE(!result.ok());
  CHECK(result.error().code == ErrorCode::timeout);
  CHECK(busy.wait(1ms).error().code == ErrorCode::timeout);  // of the wait, not of the call
  std::ofstream{scratch / "go on"};
  take(busy.wait(kPatience));
  CHECK(take(probe.call<&Probe::seen>().wait(kPatience)).empty());
}

TEST_CASE("any_of and all_of") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto slow = take(client.actors().spawn<Probe>({}, "slow"));
  auto fast = take(client.actors().spawn<Counter>({}, 5));
  auto sleeping = slow.call<&Probe::sleep>(600'000);
  auto value = fast.call<&Counter::value>();
  CHECK(take(any_of(kPatience, sleeping, value)) == 1);
  CHECK(any_of(std::vector{sleeping}, 50ms).error().code == ErrorCode::timeout);
  CHECK(take(all_of(std::vector{value, fast.call<&Counter::add>(1)}, kPatience)) ==
        std::vector<std::int64_t>{5, 6});
  const auto broken =
      all_of(std::vector{fast.call<&Counter::value>(), Future<std::int64_t>()}, kPatience);
  CHECK(broken.error().code == ErrorCode::bad_request);
  take(slow.kill());
  CHECK(!sleeping.wait(kPatience).ok());  // whoever was passed over can still be waited for
}

TEST_CASE("arrays and large texts travel beside the calls, from actor to actor directly") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto one = take(actors.spawn<Probe>({}, "one"));
  auto two = take(actors.spawn<Probe>({}, "two"));
  auto made = one.call<&Probe::array>(300'000, 1.f);
  auto doubled = two.call<&Probe::twice>(made);
  auto again = one.call<&Probe::twice>(doubled);
  CHECK(take(two.call<&Probe::sum>(again).wait(kPatience)) == 1'200'000);
  CHECK(take(again.wait(kPatience)).shape == std::vector<std::int64_t>{300'000});
  CHECK(take(two.call<&Probe::sum>(take(made.wait(kPatience))).wait(kPatience)) == 300'000);
  // To the one who holds it, too.
  CHECK(take(one.call<&Probe::sum>(made).wait(kPatience)) == 300'000);
  CHECK(take(one.call<&Probe::blob>(3'000'000).wait(kPatience)).size() == 3'000'000);
}

TEST_CASE("a failed future fails the call it was given to") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto probe = take(client.actors().spawn<Probe>({}, "p"));
  auto child = probe.call<&Probe::find_counter>("nobody");
  const auto result = child.wait(kPatience);
  CHECK(result.error().code == ErrorCode::exception);
  auto text = probe.call<&Probe::fail>("gone");
  CHECK(probe.call<&Probe::fail>(text).wait(kPatience).error().what.find("gone") !=
        std::string::npos);
}

TEST_CASE("actors call, spawn and find each other") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto probe = take(actors.spawn<Probe>({}, "p"));
  auto counter = take(actors.spawn<Counter>({.name = "c"}, 1));
  CHECK(take(probe.call<&Probe::call_other>(counter, 5).wait(kPatience)) == 6);
  auto child = take(probe.call<&Probe::spawn_counter>(40, false).wait(kPatience));
  CHECK(take(child.call<&Counter::add>(2).wait(kPatience)) == 42);
  auto found = take(probe.call<&Probe::find_counter>("c").wait(kPatience));
  CHECK(found.id() == counter.id());
}

TEST_CASE("text calls: by name, with JSON, for people") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto probe = take(actors.spawn<Probe>({}, "p"));
  const auto text = [&](const std::string& method, const std::string& arguments) {
    return actors.call_text(probe.id(), method, arguments, kPatience);
  };
  CHECK(take(text("name", "[]")) == "\"p\"");
  CHECK(take(text("points", "[[1, 2.5], [[3, 4]]]")) == R"({"0":[3.0,4.0],"first":[1.0,2.5]})");
  CHECK(take(text("append", "[3]")) == "null");
  CHECK(take(text("seen", "[]")) == "[3]");
  CHECK(take(text("sum", R"([{"dtype":"float32","shape":[2],"data":[1,2]}])")) == "3.0");
  CHECK(text("append", "[1.5]").error().what.find("argument 1 is 1.5, not a int64") !=
        std::string::npos);
  CHECK(text("append", "[1, 2]").error().what.find("takes 1 arguments (int64), not 2") !=
        std::string::npos);
  CHECK(text("nothing", "[]").error().what.find("has no method \"nothing\"") != std::string::npos);
  CHECK(text("append", "oops").error().code == ErrorCode::bad_request);
}

TEST_CASE("classes are known with their methods and types") {
  SmallCluster cluster;
  auto client = cluster.connect();
  const auto classes = take(client.actors().classes());
  REQUIRE(classes.size() == 3);
  CHECK(classes[0].name == "troupe::testing::Counter");
  CHECK(classes[0].arguments == "int64");
  CHECK(classes[0].methods.size() == 3);
  CHECK(classes[0].methods[0].name == "add");
  CHECK(classes[0].methods[2].result == "unit");
  const auto& points = classes[2].methods.at(17);
  CHECK(points.name == "points");
  CHECK(points.arguments ==
        "optional<troupe::testing::Point{float64, float64}>, "
        "list<troupe::testing::Point{float64, float64}>");
}

TEST_CASE("calls with other types are refused by name, and do not run") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto counter = take(actors.spawn<Counter>({}, 1));
  detail::MethodRow other{"add", "string", "int64", 12345, ""};
  detail::CallRequest call;
  call.actor = counter.id();
  call.method = other.name;
  call.types = other.types;
  call.row = &other;
  ValueWriter text;
  Value<std::string>::write(text, "five");
  call.arguments = text.take();
  const auto refused = Future<std::int64_t>(actors.caller()->call(call)).wait(kPatience);
  CHECK(refused.error().code == ErrorCode::bad_request);
  CHECK(refused.error().what ==
        "troupe::testing::Counter (actor 1).add: takes (int64) and gives int64, the call has other "
        "types; it was called as (string) -> int64");
  // Right types, and bytes that are none of them.
  call.types = detail::method_row<Counter, &Counter::add>().types;
  call.arguments = "abc";
  CHECK(Future<std::int64_t>(actors.caller()->call(call)).wait(kPatience).error().code ==
        ErrorCode::bad_request);
  CHECK(take(counter.call<&Counter::value>().wait(kPatience)) == 1);
  const auto spawned = Future<std::uint64_t>(
      actors.caller()->spawn({"troupe::testing::Counter", 99, "", false, {}}));
  CHECK(spawned.wait(kPatience).error().what.find("is made from (int64)") != std::string::npos);
}

TEST_CASE("a thousand calls to each of eight actors at once") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  std::vector<Future<ActorHandle<Counter>>> coming;
  for (int i = 0; i < 8; ++i)
    coming.push_back(actors.spawn_later<Counter>({}, 0));
  const auto counters = take(all_of(coming, 2 * kPatience));
  std::vector<Future<std::int64_t>> sums;
  for (int i = 0; i < 1000; ++i) {
    for (const auto& counter : counters)
      sums.push_back(counter.call<&Counter::add>(1));
  }
  const auto values = take(all_of(sums, 2 * kPatience));
  CHECK(std::accumulate(values.begin(), values.end(), std::int64_t{0}) == 8 * 1000 * 1001 / 2);
}

}  // namespace troupe::testing
