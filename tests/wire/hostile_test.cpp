#include <cstdlib>
#include <memory>
#include <new>
#include <random>

#include "tests/support/doctest.h"
#include "tests/wire/sample.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/blob_messages.h"
#include "transport/wire/call_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/session.h"
#include "transport/wire/tensor_messages.h"
#include "transport/wire/user_messages.h"

namespace {
std::size_t allocated = 0;

// Each refusal is an exception, and a sanitizer makes those far slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 2'000;
#else
constexpr int kRounds = 100'000;
#endif
}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocated += bytes;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace troupe::wire {

namespace {

/// Bytes asked of operator new so far; frees are not taken off.
std::size_t allocated_bytes() {
  return allocated;
}

/// True if the bytes were an M. Anything but an M or a WireError is a bug.
template <class M>
bool try_decode(std::span<const std::byte> bytes) {
  try {
    decode<M>(bytes);
    return true;
  } catch (const WireError&) {
    return false;
  }
}

int try_all(std::span<const std::byte> bytes) {
  return try_decode<sample::Everything>(bytes) + try_decode<sample::Tree>(bytes) +
         try_decode<Hello>(bytes) + try_decode<Welcome>(bytes) + try_decode<Failure>(bytes) +
         try_decode<BlobChunk>(bytes) + try_decode<SubmitJob>(bytes) +
         try_decode<JobFinished>(bytes) + try_decode<JobList>(bytes) +
         try_decode<ClusterStatus>(bytes) + try_decode<ConnectGroups>(bytes) +
         try_decode<BeginJob>(bytes) + try_decode<RunTasks>(bytes) + try_decode<TaskDone>(bytes) +
         try_decode<TaskFailed>(bytes) + try_decode<MailboxReport>(bytes) +
         try_decode<TensorReport>(bytes) + try_decode<TensorSlice>(bytes) +
         try_decode<LatentRows>(bytes) + try_decode<InjectFault>(bytes) +
         try_decode<LogLines>(bytes) + try_decode<SpawnActor>(bytes) +
         try_decode<ActorList>(bytes) + try_decode<ClassList>(bytes) +
         try_decode<ActorDied>(bytes) + try_decode<ActorCalls>(bytes) +
         try_decode<CallResults>(bytes);
}

}  // namespace

TEST_CASE("random bytes neither crash a decoder nor make it allocate much") {
  std::mt19937_64 random(20260501);
  std::string bytes;
  std::size_t most = 0;
  for (int round = 0; round < kRounds; ++round) {
    bytes.resize(random() % 96);
    for (char& byte : bytes) {
      // Small numbers make plausible lengths, so that decoders get further than the first field.
      byte = random() % 3 ? static_cast<char>(random() % 4) : static_cast<char>(random());
    }
    const std::size_t before = allocated_bytes();
    try_all(as_bytes(bytes));
    try {
      decode_header(as_bytes(bytes));
    } catch (const WireError&) {
    }
    most = std::max(most, allocated_bytes() - before);
  }
  CHECK(most < 64u << 10);
}

TEST_CASE("a full payload of any one byte stays within a small multiple of its size") {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(64u << 10, static_cast<char>(byte));
    const std::size_t before = allocated_bytes();
    try_all(as_bytes(bytes));
    // Growing vectors count each time they grow, and 15 messages are tried.
    CHECK(allocated_bytes() - before < 4u << 20);
  }
}

TEST_CASE("mutated messages are read or refused") {
  JobFinished message;
  message.job = 7;
  message.state = JobState::succeeded;
  message.blobs = {{"picture", 1, 100, {1, 2, 3}}, {"latents", 2, 200, {4}}};
  message.report = R"({"seed": 1})";
  const std::string original = encode(message);
  std::mt19937_64 random(7);
  int refused = 0;
  for (int round = 0; round < kRounds / 5; ++round) {
    std::string bytes = original;
    for (int i = 0; i < 3; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (!try_decode<JobFinished>(as_bytes(bytes))) ++refused;
  }
  CHECK(refused > kRounds / 100);
}

}  // namespace troupe::wire
