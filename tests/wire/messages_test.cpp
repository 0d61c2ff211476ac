#include "tests/support/doctest.h"
#include "transport/wire/codec.h"
#include "transport/wire/session.h"
#include "transport/wire/task_messages.h"

namespace troupe::wire {

TEST_CASE("a hello keeps every field") {
  const Hello hello{
      PeerRole::actor, "actor 3", "host", 42, "troupe 0.1.0", {{"device", "cpu"}, {"rank", "3"}}};
  const auto back = decode<Hello>(as_bytes(encode(hello)));
  CHECK(back.role == PeerRole::actor);
  CHECK(back.name == "actor 3");
  CHECK(back.host == "host");
  CHECK(back.pid == 42);
  CHECK(back.software == "troupe 0.1.0");
  CHECK(back.attributes == hello.attributes);
}

TEST_CASE("warnings keep whose prompt they are about") {
  TaskDone done;
  done.warnings = {{0, "is cut"}, {std::nullopt, "prompt 1 is cut"}};
  CHECK(decode<TaskDone>(as_bytes(encode(done))).warnings == done.warnings);
}

TEST_CASE("an unknown failure code is refused") {
  std::string bytes = encode(Failure{FailureCode::internal, "x"});
  bytes[0] = 99;
  CHECK_THROWS_AS(decode<Failure>(as_bytes(bytes)), WireError);
}

}  // namespace troupe::wire
