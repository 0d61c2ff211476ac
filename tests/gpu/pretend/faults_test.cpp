// Faults planted once each in programs that are well otherwise, and what the pretend GPU says of
// them. Each program is a process or two of its own, since a fault ends it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "tests/gpu/pretend/machine.h"

#include "tests/support/doctest.h"

using namespace std::chrono_literals;

namespace c10::cuda::_internal {
// Not in a header that is installed; LibTorch's CUDA half calls it, which is not here.
C10_CUDA_API void setHasPrimaryContext(bool (*ask)(DeviceIndex));
}  // namespace c10::cuda::_internal

namespace {

constexpr std::size_t kBytes = 1 << 20;

/// Ends the process where a call of the program itself goes wrong.
void must(bool well, const char* what) {
  if (well) return;
  const std::string line = std::string("WRONG: ") + what + "\n";
  std::ofstream(std::getenv("TROUPE_PRETEND_REPORT"), std::ios::app) << line;
  ::_exit(1);
}
#define MUST(...) must((__VA_ARGS__), #__VA_ARGS__)

using Ids = std::array<ncclUniqueId, 2>;  // of communicators of both ranks

struct Told {
  bool ended = true;  // all processes by themselves, with 0
  std::string text;
};

/// Runs a process for each rank; what they and the pretend GPU said.
Told run(int ranks, const std::function<void(int rank, const Ids& ids)>& body,
         const std::vector<std::pair<const char*, const char*>>& environment = {}) {
  char path[] = "/tmp/troupe-pretend-XXXXXX";
  REQUIRE(::close(::mkstemp(path)) == 0);
  Ids ids{};
  for (ncclUniqueId& id : ids)
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("TROUPE_PRETEND_REPORT", path, 1);
      ::setenv("TROUPE_PRETEND_PATIENCE_MS", "1000", 1);
      ::setenv("CUDA_MODULE_LOADING", "EAGER",
               1);  // a load waits, and so orders what it stands between
      for (const auto& [name, value] : environment)
        ::setenv(name, value, 1);
      ::alarm(40);
      body(rank, ids);
      ::_exit(0);
    }
    children.push_back(child);
  }
  Told told;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    told.ended = told.ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  told.text = text.str();
  ::unlink(path);
  return told;
}

bool has(const Told& told, const std::string& part) {
  return told.text.find(part) != std::string::npos;
}

cudaStream_t stream() {
  cudaStream_t made = nullptr;
  MUST(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess);
  return made;
}

int* memory() {
  void* data = nullptr;
  MUST(cudaMalloc(&data, kBytes) == cudaSuccess);
  return static_cast<int*>(data);
}

/// A kernel that adds one to the first number there, or only looks at it.
void launch(cudaStream_t on, int* data, const char* name, bool writes = true) {
  pretend::Command command;
  command.name = name;
  command.ranges = {{data, kBytes, writes}};
  command.run = [data, writes] {
    if (writes) ++*data;
    return true;
  };
  MUST(pretend::launch(on, std::move(command), name) == cudaSuccess);
}

ncclComm_t join(int rank, ncclUniqueId id) {
  ncclComm_t comm = nullptr;
  MUST(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
  return comm;
}

}  // namespace

TEST_CASE("a receive that is posted ahead, then a kernel whose module is not loaded yet") {
  // Two stages in a ring: each receives what the other sends once it has computed.
  const auto stage = [](int rank, const Ids& ids) {
    const std::array<ncclComm_t, 2> edges{join(rank, ids[0]), join(rank, ids[1])};
    const cudaStream_t computing = stream(), receiving = stream();
    int *got = memory(), *made = memory();
    MUST(cudaMemsetAsync(made, 0, kBytes, computing) == cudaSuccess);
    MUST(ncclRecv(got, kBytes, ncclInt8, 1 - rank, edges[rank], receiving) == ncclSuccess);
    std::this_thread::sleep_for(300ms);  // until it occupies its stream, on a busy machine, too
    launch(computing, made, "block");
    MUST(cudaStreamSynchronize(computing) == cudaSuccess);
    MUST(ncclSend(made, kBytes, ncclInt8, 1 - rank, edges[1 - rank], computing) == ncclSuccess);
    int first = 0;
    MUST(cudaStreamSynchronize(receiving) == cudaSuccess);
    MUST(cudaMemcpy(&first, got, sizeof first, cudaMemcpyDefault) == cudaSuccess);
    MUST(first == 1);
  };
  const Told lazily = run(2, stage, {{"CUDA_MODULE_LOADING", "LAZY"}});
  CAPTURE(lazily.text);
  CHECK_FALSE(lazily.ended);
  CHECK(has(lazily, "CYCLE: thread "));
  CHECK(has(lazily, "loads \"block\", which is launched for the first time"));
  CHECK(has(lazily, "receive of 1048576 bytes from rank 1\" occupies stream"));
  const Told eagerly = run(2, stage, {{"CUDA_MODULE_LOADING", "EAGER"}});
  CAPTURE(eagerly.text);
  CHECK(eagerly.ended);
  CHECK(eagerly.text.empty());
}

TEST_CASE("two streams without an event between them") {
  const auto streams = [](bool waits) {
    return [waits](int, const Ids&) {
      const cudaStream_t first = stream(), second = stream();
      cudaEvent_t event = nullptr;
      int* data = memory();
      launch(first, data, "who makes it");
      MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      MUST(cudaEventRecord(event, first) == cudaSuccess);
      if (waits) MUST(cudaStreamWaitEvent(second, event, 0) == cudaSuccess);
      launch(second, data, "who takes it", false);
      MUST(cudaDeviceSynchronize() == cudaSuccess);
    };
  };
  const Told missing = run(1, streams(false));
  CAPTURE(missing.text);
  CHECK(has(missing, "RACE: \"who takes it\""));
  CHECK(has(missing, "\"who makes it\""));
  const Told there = run(1, streams(true));
  CAPTURE(there.text);
  CHECK(there.ended);
  CHECK(there.text.empty());
}

TEST_CASE("memory that goes back while another stream reads it") {
  const auto program = [](bool records) {
    return [records](int, const Ids&) {
      c10::cuda::_internal::setHasPrimaryContext(
          [](c10::DeviceIndex device) { return pretend::has_context(device); });
      c10::cuda::CUDACachingAllocator::init(1);
      auto* allocator = c10::cuda::CUDACachingAllocator::get();
      const auto other = c10::cuda::getStreamFromPool(false, 0);
      cudaEvent_t event = nullptr;
      MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      {
        const auto block = allocator->allocate(kBytes);
        launch(nullptr, static_cast<int*>(block.get()), "who makes it");
        MUST(cudaEventRecord(event, nullptr) == cudaSuccess);
        MUST(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
        launch(other, static_cast<int*>(block.get()), "who still reads it", false);
        if (records) c10::cuda::CUDACachingAllocator::recordStream(block, other);
      }
      const auto next = allocator->allocate(kBytes);
      launch(nullptr, static_cast<int*>(next.get()), "who is given it");
      MUST(cudaDeviceSynchronize() == cudaSuccess);
    };
  };
  const Told early = run(1, program(false));
  CAPTURE(early.text);
  CHECK(has(early, "RACE: \"who is given it\""));
  CHECK(has(early, "\"who still reads it\""));
  const Told in_time = run(1, program(true));
  CAPTURE(in_time.text);
  CHECK(in_time.ended);
  CHECK(in_time.text.empty());
}

TEST_CASE("an abort behind the lock of a thread that waits for the device") {
  const auto program = [](bool device_is_current) {
    return [device_is_current](int rank, const Ids& ids) {
      ncclComm_t comm = join(rank, ids[0]);
      int* data = memory();
      std::atomic<bool> began{false}, inside{false}, asked{false}, free{false};
      std::thread aborter([&] {
        if (device_is_current) MUST(cudaSetDevice(0) == cudaSuccess);
        began = true;
        while (!asked)
          std::this_thread::sleep_for(1ms);
        if (!device_is_current) MUST(cudaSetDevice(0) == cudaSuccess);
        ncclCommAbort(comm);
      });
      while (!began)
        std::this_thread::sleep_for(1ms);
      MUST(ncclRecv(data, kBytes, ncclInt8, 1 - rank, comm, stream()) == ncclSuccess);
      std::thread stuck([&] {
        void* pinned = nullptr;
        inside = true;
        static_cast<void>(cudaHostAlloc(&pinned, kBytes, 0));
        free = true;
      });
      while (!inside)
        std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(300ms);  // a busy machine takes a while to the lock
      asked = true;
      for (int i = 0; i < 400 && !free; ++i)
        std::this_thread::sleep_for(10ms);
      MUST(free);
      stuck.join();
      aborter.join();
    };
  };
  const Told behind = run(2, program(false), {{"TROUPE_PRETEND_FAULTS", "report"}});
  CAPTURE(behind.text);
  CHECK_FALSE(behind.ended);
  CHECK(has(behind, "in cudaHostAlloc waits, holding the context lock"));
  CHECK(has(behind, "waits for the context lock in cudaSetDevice"));
  const Told before =
      run(2, program(true),
          {{"TROUPE_PRETEND_FAULTS", "report"}, {"TROUPE_PRETEND_PATIENCE_MS", "5000"}});
  CAPTURE(before.text);
  CHECK(before.ended);
  CHECK(before.text.empty());
}

TEST_CASE("what a device refuses: errors that stick, calls inside a capture") {
  const Told stuck = run(1,
                         [](int, const Ids&) {
                           int* data = memory();
                           launch(nullptr, data, "the first");
                           MUST(cudaDeviceSynchronize() == cudaSuccess);
                           launch(nullptr, data, "the second");
                           MUST(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
                           void* more = nullptr;
                           MUST(cudaMalloc(&more, kBytes) == cudaErrorIllegalAddress);
                         },
                         {{"TROUPE_PRETEND_STICKS_AT", "2"}});
  CHECK_MESSAGE(stuck.ended, stuck.text);
  const Told capturing = run(1, [](int, const Ids&) {
    const cudaStream_t on = stream();
    int* data = memory();
    cudaStreamCaptureStatus status{};
    MUST(cudaStreamIsCapturing(on, &status) == cudaSuccess);
    MUST(status == cudaStreamCaptureStatusNone);
    MUST(cudaStreamBeginCapture(on, cudaStreamCaptureModeGlobal) == cudaSuccess);
    MUST(cudaStreamIsCapturing(on, &status) == cudaSuccess);
    MUST(status == cudaStreamCaptureStatusActive);
    MUST(cudaMemsetAsync(data, 0, kBytes, on) == cudaErrorStreamCaptureUnsupported);
    MUST(cudaStreamSynchronize(on) == cudaErrorStreamCaptureUnsupported);
  });
  CHECK_MESSAGE(capturing.ended, capturing.text);
}

TEST_CASE("what stands on the legacy stream orders streams that wait for it, and no others") {
  const auto program = [](unsigned flags) {
    return [flags](int, const Ids&) {
      cudaStream_t other = nullptr;
      MUST(cudaStreamCreateWithFlags(&other, flags) == cudaSuccess);
      int* data = memory();
      launch(nullptr, data, "on the legacy stream");
      launch(other, data, "on another");
      MUST(cudaDeviceSynchronize() == cudaSuccess);
    };
  };
  const Told ordered = run(1, program(cudaStreamDefault));
  CHECK_MESSAGE(ordered.ended, ordered.text);
  CHECK(has(run(1, program(cudaStreamNonBlocking)), "RACE: \"on another\""));
}
