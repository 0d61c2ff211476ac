#include "tests/support/doctest.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/blob_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/codec.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/session.h"

namespace troupe::wire {
namespace {

/// A default message survives the way there and back, and says something.
template <class M>
void check_round_trip(const M& message) {
  const std::string bytes = encode(message);
  CHECK(encode(decode<M>(as_bytes(bytes))) == bytes);
  const std::string frame = encode_frame({}, message);
  CHECK(decode_header(as_bytes(frame)).kind == M::kKind);
}

}  // namespace

TEST_CASE_TEMPLATE("messages go there and back", M, Hello, Welcome, Refuse, Heartbeat, Goodbye,
                   Failure, Ping, Pong, BlobRequest, BlobChunk, SubmitJob, JobAccepted, JobProgress,
                   JobFinished, WaitJob, CancelJob, Done, ListJobs, JobList, GetStatus,
                   ClusterStatus, StopCluster, LoadStage, StageLoaded, ConnectGroups,
                   GroupsConnected, BeginJob, RunTasks, TaskDone, TaskFailed, EndJob, ActorJobStats,
                   AbortEpoch, Unload, Shutdown, GetMailbox, MailboxReport, GetTensors,
                   TensorReport, GetSlice, TensorSlice, GetLatents, JobLatents, GetLatentRows,
                   LatentRows, RenderLatents, Rendered, ControlJob, InjectFault, GetDocument,
                   Document, GetLogs, LogLines, ReadClock, ClockReading) {
  check_round_trip(M{});
}

TEST_CASE("a hello keeps every field") {
  const Hello hello{"actor", "actor 3",      "host",
                    42,      "troupe 0.1.0", {{"device", "cpu"}, {"rank", "3"}}};
  const auto back = decode<Hello>(as_bytes(encode(hello)));
  CHECK(back.role == "actor");
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
