// What the stand-in for CUDA does, and what it finds that a device would answer with wrong numbers,
// a hang or silence.
#include <cuda_runtime.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <stdexcept>

#include "tests/support/doctest.h"

namespace {

using troupe::cuda_stand_in::allocate;
using troupe::cuda_stand_in::release;

constexpr int kThreads = 96;

template <typename T>
struct OnDevice {
  explicit OnDevice(std::size_t count) : data(static_cast<T*>(allocate(count * sizeof(T)))) {}
  ~OnDevice() { release(data); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data;
};

/// Returns whether a process that does this ends well.
template <typename Work>
bool survives(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int number : {SIGSEGV, SIGABRT})
      signal(number, SIG_DFL);
    close(STDERR_FILENO);
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

__global__ void reverse_blocks(const int* from, int* to) {
  __shared__ int values[kThreads];
  const unsigned at = (blockIdx.y * gridDim.x + blockIdx.x) * kThreads;
  values[threadIdx.x] = from[at + threadIdx.x];
  __syncthreads();
  to[at + threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

__global__ void add_up_warps(const double* from, double* to) {
  double sum = from[threadIdx.x];
  for (int step = 16; step > 0; step /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, step);
  to[threadIdx.x] = sum;
}

__global__ void late_comers_leave(int* to) {
  __shared__ int values[kThreads];
  if (threadIdx.x >= 40) return;
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  to[threadIdx.x] = values[39 - threadIdx.x];
}

__global__ void reverse_without_barrier(int* to) {
  __shared__ int values[kThreads];
  values[threadIdx.x] = static_cast<int>(threadIdx.x);
  to[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

/// Warps read what others wrote a round before they may have read it.
__global__ void rounds_with_one_barrier(int* to) {
  __shared__ int values[kThreads];
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    values[threadIdx.x] = static_cast<int>(threadIdx.x) * round;
    __syncthreads();
    sum += values[kThreads - 1 - threadIdx.x];
  }
  to[threadIdx.x] = sum;
}

__global__ void count_up(int* to) {
  *to = static_cast<int>(blockIdx.x);
}

__global__ void barrier_of_some(int* to) {
  if (threadIdx.x < 32) __syncthreads();
  __syncthreads();
  to[threadIdx.x] = 1;
}

__global__ void shuffle_after_leaving(float* to, unsigned mask, int leave) {
  if (static_cast<int>(threadIdx.x) < leave) return;
  to[threadIdx.x] = __shfl_xor_sync(mask, 1.0f, 1);
}

__global__ void warp_barrier_or_shuffle(float* to) {
  if (threadIdx.x % 2 == 0)
    __syncwarp();
  else
    to[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 2);
}

__global__ void read_unwritten(float* to) {
  __shared__ float values[2];
  to[threadIdx.x] = values[threadIdx.x];
}

__global__ void write_beside(int at) {
  __shared__ int values[4];
  int* first = values;
  first[at] = 1;
}

__global__ void copy(const int* from, int* to, int shift) {
  to[threadIdx.x] = from[static_cast<int>(threadIdx.x) + shift];
}

}  // namespace

TEST_CASE("threads exchange values through shared memory, blocks know their places") {
  const OnDevice<int> from(6 * kThreads), to(6 * kThreads);
  for (int i = 0; i < 6 * kThreads; ++i)
    from.data[i] = i;
  reverse_blocks<<<dim3(3, 2), kThreads>>>(from.data, to.data);
  CHECK(cudaGetLastError() == cudaSuccess);
  for (int i = 0; i < 6 * kThreads; ++i)
    REQUIRE(to.data[i] == i / kThreads * kThreads + kThreads - 1 - i % kThreads);
}

TEST_CASE("lanes exchange values by shuffles") {
  const OnDevice<double> from(64), to(64);
  for (int i = 0; i < 64; ++i)
    from.data[i] = i;
  add_up_warps<<<1, 64>>>(from.data, to.data);
  for (int i = 0; i < 64; ++i)
    REQUIRE(to.data[i] == (i < 32 ? 496 : 1520));
}

TEST_CASE("a barrier does not wait for threads that have ended") {
  const OnDevice<int> to(40);
  late_comers_leave<<<1, kThreads>>>(to.data);
  for (int i = 0; i < 40; ++i)
    REQUIRE(to.data[i] == 39 - i);
}

TEST_CASE("races show in what threads leave") {
  const OnDevice<int> to(kThreads);
  const auto found = doctest::Contains("depends on which threads run first");
  const auto without = [&] { reverse_without_barrier<<<1, kThreads>>>(to.data); };
  CHECK_THROWS_WITH(without(), found);
  const auto rounds = [&] { rounds_with_one_barrier<<<1, kThreads>>>(to.data); };
  CHECK_THROWS_WITH(rounds(), found);
  const auto blocks = [&] { count_up<<<100, 1>>>(to.data); };
  CHECK_THROWS_WITH(blocks(), found);
}

TEST_CASE("threads that wait for each other for ever are told of by place") {
  const OnDevice<int> to(kThreads);
  const auto some = [&] { barrier_of_some<<<1, kThreads>>>(to.data); };
  CHECK_THROWS_WITH(some(), doctest::Contains("barrier_of_some, block (0, 0, 0): threads wait for "
                                              "each other: 32 at tests/gpu/stand_in/"));
  const OnDevice<float> values(32);
  const auto left = [&](unsigned mask, int leave) {
    shuffle_after_leaving<<<1, 32>>>(values.data, mask, leave);
  };
  CHECK_THROWS_WITH(left(0xffffffffu, 1), doctest::Contains("for a shuffle with the warp, 1 have"));
  CHECK_THROWS_WITH(left(0x7fffffffu, 0), doctest::Contains("lane 30 asks for the value of lane"));
  CHECK_THROWS_WITH(left(0xfffffff0u, 0), doctest::Contains("is not in"));
  left(0xfffffff0u, 4);
  CHECK(values.data[4] == 1);
  const auto both = [&] { warp_barrier_or_shuffle<<<1, 32>>>(values.data); };
  CHECK_THROWS_WITH(both(), doctest::Contains("16 at"));
}

TEST_CASE("shared memory is NaN at first, and nothing is written beside it") {
  const OnDevice<float> to(2);
  to.data[0] = to.data[1] = 0;
  read_unwritten<<<1, 2>>>(to.data);
  CHECK(isnan(to.data[0]));
  CHECK(isnan(to.data[1]));
  const auto write = [](int at) { write_beside<<<1, 1>>>(at); };
  write(3);
  CHECK_THROWS_WITH(write(4), doctest::Contains("beside a shared array"));
  CHECK_THROWS_WITH(write(-1), doctest::Contains("beside a shared array"));
}

TEST_CASE("an access beside a buffer ends the process") {
  const auto copies = [](int count, int shift) {
    return survives([&] {
      const OnDevice<int> from(32), to(32);
      copy<<<1, static_cast<unsigned>(count)>>>(from.data, to.data, shift);
    });
  };
  CHECK(copies(32, 0));
  CHECK_FALSE(copies(32, 1));
  CHECK_FALSE(copies(33, -1));
  const auto writes = [](std::ptrdiff_t at) {
    return survives([&] {
      const OnDevice<char> to(3);
      to.data[at] = 1;
    });
  };
  CHECK(writes(2));
  CHECK_FALSE(writes(3));
  CHECK_FALSE(writes(-1));
}

TEST_CASE("kernels are given device memory, in grids that a device takes") {
  const OnDevice<int> from(32), to(32);
  int own[32] = {};
  const auto from_host = [&] { copy<<<1, 32>>>(own, to.data, 0); };
  CHECK_THROWS_WITH(from_host(), doctest::Contains("what is not device memory"));
  const dim3 refused[] = {{0}, {0x80000000u}, {1, 65536}, {1, 1, 65536}};
  for (const dim3& grid : refused) {
    copy<<<grid, 32>>>(from.data, to.data, 0);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(cudaGetLastError() == cudaSuccess);
  }
  copy<<<1, 1025>>>(from.data, to.data, 0);
  CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
}
