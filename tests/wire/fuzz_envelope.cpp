// libFuzzer target: a frame as it comes from a socket, and its payload as every message.
#include "transport/wire/actor_messages.h"
#include "transport/wire/blob_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/codec.h"
#include "transport/wire/session.h"

namespace {

template <class... Ms>
void decode_as(std::span<const std::byte> payload) {
  const auto one = [&]<class M>(const M*) {
    try {
      const M message = troupe::wire::decode<M>(payload);
      // What was read must be written back as it was: there is one encoding of each message.
      const std::string again = troupe::wire::encode(message);
      if (again.size() != payload.size() ||
          !std::equal(payload.begin(), payload.end(), troupe::wire::as_bytes(again).begin())) {
        __builtin_trap();
      }
    } catch (const troupe::wire::WireError&) {
    }
  };
  (one(static_cast<const Ms*>(nullptr)), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace troupe::wire;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  std::span<const std::byte> payload = bytes;
  try {
    decode_header(bytes);
    payload = payload_of(bytes);
  } catch (const WireError&) {
  }
  decode_as<Hello, Welcome, Refuse, Heartbeat, Goodbye, Failure, Ping, BlobRequest, BlobChunk,
            SubmitJob, JobAccepted, JobProgress, JobFinished, JobList, ClusterStatus, LoadStage,
            ConnectGroups, BeginJob, RunTasks, TaskDone, TaskFailed, ActorJobStats, AbortEpoch>(
      payload);
  return 0;
}
