// NCCL between processes of one machine, or threads of one: rings of bytes in shared memory, and
// kernels that occupy their stream until the peer has done its part. As non-blocking and as
// reluctant as NCCL may be: groups are launched by a thread of their own, sends wait for the
// receiver in half of all seeds, and freeing a communicator waits for the device.
#include <cuda_fp16.h>
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tests/gpu/pretend/machine.h"

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kRing = 1 << 20;
constexpr int kMembers = 64;
constexpr const char* kMagic = "pretend nccl ";

struct Ring {
  std::atomic<std::uint64_t> written, read;
  std::byte bytes[kRing];
};

/// Table in a memfd that all members map. A ring for each ordered pair follows.
struct Table {
  struct Member {
    std::atomic<int> process;  // 0 before it has joined
    std::atomic<int> board;
  };
  Member members[kMembers];
  std::atomic<int> serial;  // distinguishes communicators in what is said
};

std::size_t table_bytes(int size) {
  return sizeof(Table) + sizeof(Ring) * static_cast<std::size_t>(size) * size;
}

struct Transfer {
  bool is_send;
  std::byte* data;
  std::size_t bytes;
  int peer;
  std::size_t done = 0;
  std::uint64_t ends_at = 0;  // of a send: what the ring will have passed on by then
};

/// Reduction that follows the transfers of a collective.
struct Reduction {
  std::vector<std::vector<std::byte>> parts;
  void* out;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
};

/// One kernel: all of a group's calls on a communicator and stream, which move together.
struct Kernel {
  std::list<Transfer> transfers;
  std::shared_ptr<Reduction> reduction;
  std::string name;
  std::vector<pretend::Range> ranges;
};

}  // namespace

struct ncclComm {
  int rank = 0, size = 0, device = 0, blocks = 4;
  bool blocking = true;
  std::string id;
  Table* table = nullptr;
  int file = -1;
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::string error;
  std::vector<std::thread> threads;
  std::atomic<int> kernels{0};  // on the device or before it

  Ring& ring(int from, int to) { return reinterpret_cast<Ring*>(table + 1)[from * size + to]; }
  std::string named() const {
    return "communicator " + std::to_string(table ? table->serial.load() : 0) + " rank " +
           std::to_string(rank) + " of " + std::to_string(size);
  }
  void fail(ncclResult_t result, const std::string& why) {
    std::lock_guard lock(mutex);
    error = why;
    state = result;
  }
};

namespace {

bool rendezvous() {
  static const bool value =
      pretend::setting("TROUPE_PRETEND_RENDEZVOUS",
                       static_cast<std::int64_t>(pretend::drawn(7, 7, 7) % 2)) != 0;
  return value;
}

std::size_t width(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

float widen(std::uint16_t bits, ncclDataType_t type) {
  if (type == ncclFloat16) return __half2float(__half(__half_raw{bits}));
  const std::uint32_t whole = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &whole, sizeof value);
  return value;
}

std::uint16_t narrow(float value, ncclDataType_t type) {
  if (type == ncclFloat16) return static_cast<__half_raw>(__float2half(value)).x;
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <typename T>
void reduce_into(const Reduction& of, const std::byte* part) {
  auto* out = static_cast<T*>(of.out);
  for (std::size_t i = 0; i < of.count; ++i) {
    T value;
    std::memcpy(&value, part + i * sizeof(T), sizeof value);
    if (of.op == ncclSum)
      out[i] = static_cast<T>(out[i] + value);
    else  // a maximum that drops NaN, as the device's does
      out[i] = value > out[i] || out[i] != out[i] ? value : out[i];
  }
}

void reduce_halves(const Reduction& of, const std::byte* part) {
  auto* out = static_cast<std::uint16_t*>(of.out);
  for (std::size_t i = 0; i < of.count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, part + i * 2, 2);
    const float a = widen(out[i], of.type), b = widen(bits, of.type);
    out[i] = narrow(of.op == ncclSum ? a + b : std::fmax(a, b), of.type);
  }
}

/// Reduces in the order of a ring that begins behind this rank: not that of ranks.
void reduce(Reduction& of) {
  for (const auto& part : of.parts) {
    switch (of.type) {
      case ncclInt8:
        reduce_into<std::int8_t>(of, part.data());
        break;
      case ncclUint8:
        reduce_into<std::uint8_t>(of, part.data());
        break;
      case ncclInt32:
        reduce_into<std::int32_t>(of, part.data());
        break;
      case ncclInt64:
        reduce_into<std::int64_t>(of, part.data());
        break;
      case ncclFloat32:
        reduce_into<float>(of, part.data());
        break;
      case ncclFloat64:
        reduce_into<double>(of, part.data());
        break;
      default:
        reduce_halves(of, part.data());
    }
  }
}

/// Moves as many bytes as the ring takes or gives; returns whether any moved.
bool move(ncclComm& comm, Transfer& transfer) {
  Ring& ring =
      transfer.is_send ? comm.ring(comm.rank, transfer.peer) : comm.ring(transfer.peer, comm.rank);
  const std::uint64_t written = ring.written, read = ring.read;
  const std::size_t left = transfer.bytes - transfer.done;
  const std::size_t room = transfer.is_send ? kRing - (written - read) : written - read;
  const std::size_t count = std::min(left, room);
  for (std::size_t moved = 0; moved < count;) {
    const std::size_t at = ((transfer.is_send ? written : read) + moved) % kRing;
    const std::size_t run = std::min(count - moved, kRing - at);
    if (transfer.is_send)
      std::memcpy(ring.bytes + at, transfer.data + transfer.done + moved, run);
    else
      std::memcpy(transfer.data + transfer.done + moved, ring.bytes + at, run);
    moved += run;
  }
  transfer.done += count;
  if (transfer.is_send) {
    ring.written = written + count;
    if (transfer.done == transfer.bytes && transfer.ends_at == 0) transfer.ends_at = ring.written;
  } else {
    ring.read = read + count;
  }
  return count > 0;
}

bool over(ncclComm& comm, const Transfer& transfer) {
  return transfer.done == transfer.bytes &&
         (!transfer.is_send || !rendezvous() ||
          comm.ring(comm.rank, transfer.peer).read >= transfer.ends_at);
}

/// Moves what can move: per peer and direction one after another. True once all are over.
bool step(ncclComm& comm, Kernel& kernel) {
  if (comm.aborted) return true;
  std::uint64_t sending = 0, receiving = 0;
  bool moved = false;
  for (auto transfer = kernel.transfers.begin(); transfer != kernel.transfers.end();) {
    std::uint64_t& busy = transfer->is_send ? sending : receiving;
    const std::uint64_t bit = std::uint64_t{1} << transfer->peer;
    if ((busy & bit) == 0) moved |= move(comm, *transfer);
    if (over(comm, *transfer)) {
      transfer = kernel.transfers.erase(transfer);
      moved = true;
      continue;
    }
    if (transfer->done < transfer->bytes) busy |= bit;
    ++transfer;
  }
  if (moved) pretend::progress();
  if (!kernel.transfers.empty()) return false;
  if (kernel.reduction) reduce(*kernel.reduction);
  return true;
}

std::vector<pretend::PeerWait> waits(ncclComm& comm, const Kernel& kernel) {
  std::vector<pretend::PeerWait> all;
  for (const Transfer& transfer : kernel.transfers) {
    const auto& peer = comm.table->members[transfer.peer];
    all.push_back({peer.process, peer.board,
                   std::string(transfer.is_send ? "its bytes wait to be received by"
                                                : "it waits for what is to be sent by") +
                       " rank " + std::to_string(transfer.peer) + ", process " +
                       std::to_string(peer.process)});
  }
  return all;
}

struct Call {
  ncclComm* comm;
  cudaStream_t stream;
  Kernel kernel;
};

thread_local int depth = 0;
thread_local std::vector<Call> calls;

ncclResult_t launch(Call call) {
  ncclComm* comm = call.comm;
  if (comm->aborted) return ncclSuccess;
  auto kernel = std::make_shared<Kernel>(std::move(call.kernel));
  ++comm->kernels;
  pretend::Command command{.name = kernel->name,
                           .run =
                               [comm, kernel] {
                                 if (!step(*comm, *kernel)) return false;
                                 --comm->kernels;
                                 return true;
                               },
                           .ranges = kernel->ranges,
                           .thread_blocks = comm->blocks,
                           .waits_for = [comm, kernel] { return waits(*comm, *kernel); }};
  // NCCL has loaded its kernels when it was initialised: no module is loaded here.
  if (pretend::launch(call.stream, std::move(command), "") != cudaSuccess) {
    --comm->kernels;
    comm->fail(ncclUnhandledCudaError, "a CUDA error before the launch");
    return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

/// Calls of one communicator and stream become one kernel, but for collectives.
std::vector<Call> merged(std::vector<Call> all) {
  std::vector<Call> kernels;
  for (Call& call : all) {
    Call* same = kernels.empty() ? nullptr : &kernels.back();
    if (!same || same->comm != call.comm || same->stream != call.stream || same->kernel.reduction ||
        call.kernel.reduction) {
      kernels.push_back(std::move(call));
      continue;
    }
    same->kernel.transfers.splice(same->kernel.transfers.end(), call.kernel.transfers);
    same->kernel.ranges.insert(same->kernel.ranges.end(), call.kernel.ranges.begin(),
                               call.kernel.ranges.end());
    same->kernel.name += ", " + call.kernel.name.substr(call.kernel.name.find(": ") + 2);
  }
  return kernels;
}

ncclResult_t add(Call call) {
  if (call.comm->aborted) return ncclInvalidUsage;
  if (call.comm->state != ncclSuccess && call.comm->state != ncclInProgress)
    return call.comm->state;
  call.kernel.name = call.comm->named() + ": " + call.kernel.name;
  calls.push_back(std::move(call));
  if (depth > 0) return ncclSuccess;
  ++depth;
  return ncclGroupEnd();
}

/// Waits for all members, mapped by then.
void join(ncclComm* comm, const std::string& path, bool root) {
  static std::atomic<int> made{0};
  const std::size_t bytes = table_bytes(comm->size);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return comm->fail(ncclSystemError, "the rank that made the id is gone");
  if (root && ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
    return comm->fail(ncclSystemError, "no shared memory");
  for (; ::lseek(file, 0, SEEK_END) < static_cast<off_t>(bytes); std::this_thread::sleep_for(1ms))
    if (comm->aborted) return;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return comm->fail(ncclSystemError, "no shared memory");
  comm->file = file;
  auto* table = static_cast<Table*>(memory);
  if (root) table->serial = static_cast<int>(::getpid()) * 100 + made++ % 100;
  table->members[comm->rank].board = pretend::board_descriptor();
  table->members[comm->rank].process = ::getpid();
  comm->table = table;
  for (int rank = 0; rank < comm->size; ++rank)
    for (; table->members[rank].process == 0; std::this_thread::sleep_for(1ms))
      if (comm->aborted) return;
  ncclResult_t expected = ncclInProgress;
  comm->state.compare_exchange_strong(expected, ncclSuccess);
}

void finish_threads(ncclComm* comm) {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(comm->mutex);
    threads.swap(comm->threads);
  }
  for (std::thread& thread : threads)
    thread.join();
}

/// Memory goes back, for which the device must come to rest.
void release(ncclComm* comm, const char* call) {
  finish_threads(comm);
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(comm->device);
  (void)pretend::drain(std::string("in ") + call + " frees " + comm->named());
  (void)cudaSetDevice(before);
  if (comm->kernels > 0) return;  // after an error that sticks: somebody may still look
  if (comm->table) ::munmap(comm->table, table_bytes(comm->size));
  if (comm->file >= 0) ::close(comm->file);
  delete comm;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const int file = ::memfd_create("troupe pretend nccl", MFD_CLOEXEC);
  if (file < 0) return ncclSystemError;
  const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file);
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "%s%s", kMagic, path.c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (std::strncmp(id.internal, kMagic, std::strlen(kMagic)) != 0 || size > kMembers || rank < 0 ||
      rank >= size)
    return ncclInvalidArgument;
  auto* comm = new ncclComm;
  comm->rank = rank;
  comm->size = size;
  (void)cudaGetDevice(&comm->device);
  if (config && config->maxCTAs != NCCL_CONFIG_UNDEF_INT) comm->blocks = config->maxCTAs;
  if (config && config->blocking != NCCL_CONFIG_UNDEF_INT) comm->blocking = config->blocking != 0;
  comm->state = ncclInProgress;
  *made = comm;
  const std::string path = id.internal + std::strlen(kMagic);
  std::thread joining([comm, path] { join(comm, path, comm->rank == 0); });
  if (comm->blocking) {
    joining.join();
    return comm->state;
  }
  std::lock_guard lock(comm->mutex);
  comm->threads.push_back(std::move(joining));
  return ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  auto kernels = merged(std::exchange(calls, {}));
  if (kernels.empty()) return ncclSuccess;
  if (std::any_of(kernels.begin(), kernels.end(), [](const Call& c) { return c.comm->blocking; })) {
    for (Call& call : kernels)
      if (const ncclResult_t result = launch(std::move(call))) return result;
    return ncclSuccess;
  }
  // In the background, as NCCL's non-blocking groups are. Kernels of several communicators would
  // be one thread's, too; nobody here groups those.
  ncclComm* comm = kernels.front().comm;
  finish_threads(comm);
  comm->state = ncclInProgress;
  int device = 0;
  (void)cudaGetDevice(&device);
  std::lock_guard lock(comm->mutex);
  comm->threads.emplace_back([comm, device, kernels = std::move(kernels)]() mutable {
    (void)cudaSetDevice(device);
    for (Call& call : kernels)
      if (launch(std::move(call)) != ncclSuccess) return;
    ncclResult_t expected = ncclInProgress;
    comm->state.compare_exchange_strong(expected, ncclSuccess);
  });
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * width(type);
  Call call{comm, stream, {}};
  call.kernel.name = "send of " + std::to_string(bytes) + " bytes to rank " + std::to_string(peer);
  call.kernel.ranges = {{data, bytes, false}};
  call.kernel.transfers.push_back(
      {true, static_cast<std::byte*>(const_cast<void*>(data)), bytes, peer});
  return add(std::move(call));
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const std::size_t bytes = count * width(type);
  Call call{comm, stream, {}};
  call.kernel.name =
      "receive of " + std::to_string(bytes) + " bytes from rank " + std::to_string(peer);
  call.kernel.ranges = {{data, bytes, true}};
  call.kernel.transfers.push_back({false, static_cast<std::byte*>(data), bytes, peer});
  return add(std::move(call));
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const std::size_t bytes = count * width(type);
  Call call{comm, stream, {}};
  call.kernel.name =
      "broadcast of " + std::to_string(bytes) + " bytes by rank " + std::to_string(root);
  call.kernel.ranges = {{out, bytes, comm->rank != root}};
  if (comm->rank == root) {
    for (int peer = 0; peer < comm->size; ++peer)
      if (peer != root)
        call.kernel.transfers.push_back(
            {true, static_cast<std::byte*>(const_cast<void*>(in)), bytes, peer});
    if (in != out) return ncclInvalidUsage;  // only in place, as the product does
  } else {
    call.kernel.transfers.push_back({false, static_cast<std::byte*>(out), bytes, root});
  }
  return add(std::move(call));
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (in != out || (op != ncclSum && op != ncclMax)) return ncclInvalidUsage;
  const std::size_t bytes = count * width(type);
  Call call{comm, stream, {}};
  call.kernel.name = "all-reduce of " + std::to_string(bytes) + " bytes";
  call.kernel.ranges = {{out, bytes, true}};
  auto reduction = std::make_shared<Reduction>();
  *reduction = {{}, out, count, type, op};
  for (int distance = 1; distance < comm->size; ++distance) {
    const int peer = (comm->rank + distance) % comm->size;
    reduction->parts.emplace_back(bytes);
    call.kernel.transfers.push_back({true, static_cast<std::byte*>(out), bytes, peer});
    call.kernel.transfers.push_back({false, reduction->parts.back().data(), bytes, peer});
  }
  call.kernel.reduction = std::move(reduction);
  return add(std::move(call));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string text;
  if (!comm) return "";
  std::lock_guard lock(comm->mutex);
  text = comm->error;
  return text.c_str();
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    default:
      return "an error of the pretend NCCL";
  }
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  finish_threads(comm);
  comm->state = ncclInProgress;
  std::lock_guard lock(comm->mutex);
  comm->threads.emplace_back([comm] {
    while (comm->kernels > 0 && !comm->aborted)
      std::this_thread::sleep_for(200us);
    ncclResult_t expected = ncclInProgress;
    comm->state.compare_exchange_strong(expected, ncclSuccess);
  });
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  release(comm, "ncclCommDestroy");
  return ncclSuccess;
}

/// The kernels' flag first, which needs no lock; then what needs the device to be at rest.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  release(comm, "ncclCommAbort");
  return ncclSuccess;
}

}  // extern "C"
