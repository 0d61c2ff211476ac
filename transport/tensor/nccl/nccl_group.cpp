#include "transport/tensor/nccl/nccl_group.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <thread>

namespace troupe::tensor::nccl {
namespace {

using namespace std::chrono_literals;

/// How long NCCL may take to accept an operation whose peers are connected already.
constexpr auto kIssueLimit = 10s;
constexpr auto kPoll = 20us;

ncclDataType_t nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    case at::kChar:
      return ncclInt8;
    case at::kByte:
      return ncclUint8;
    default:
      return ncclNumTypes;
  }
}

}  // namespace

/// What operations share with their group, and may outlive it.
struct NcclGroup::Core {
  std::string prefix;
  int device = 0;
  Stream stream;
  ncclComm_t comm = nullptr;   ///< null once aborted; under the mutex
  Work watch;                  ///< ends only when the group fails somewhere
  std::recursive_mutex mutex;  // NCCL allows one thread at a time on a communicator
  std::deque<std::shared_ptr<Operation>> in_flight;
  std::string failure;
  Failure failure_kind = Failure::aborted;
  int culprit = -1;
  Counters counters;

  explicit Core(int cuda_device) : device(cuda_device) {}

  /// Throws if the group has failed, here or elsewhere; then the communicator is gone.
  void check_alive(const std::string& what);
  /// Waits until NCCL is done with the calls made so far on the host's side.
  void settle(const std::string& what, Deadline deadline);
  void call(ncclResult_t result, const std::string& what);
  void collapse(Failure kind, int peer, const std::string& cause);
  void reap();
};

class NcclGroup::Operation : public WorkState {
 public:
  Operation(std::shared_ptr<Core> core, std::string what, std::vector<at::Tensor> tensors)
      : core_(std::move(core)), what_(std::move(what)), tensors_(std::move(tensors)) {}

  bool finished() const { return cudaEventQuery(event_.get()) != cudaErrorNotReady; }

  bool done() override {
    std::lock_guard lock(core_->mutex);
    if (!core_->failure.empty() || core_->watch.done()) return true;
    return finished();
  }

  void wait(Deadline deadline) override {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      {
        std::lock_guard lock(core_->mutex);
        if (succeeded_ || (core_->failure.empty() && finished())) {
          succeeded_ = true;
          core_->reap();
          const std::chrono::duration<double> span = std::chrono::steady_clock::now() - start;
          core_->counters.waiting_seconds += span.count();
          return;
        }
        core_->check_alive(what_);
        ncclResult_t state = ncclSuccess;
        core_->call(ncclCommGetAsyncError(core_->comm, &state), what_);
        core_->call(state, what_);
      }
      if (std::chrono::steady_clock::now() >= deadline)
        throw TransferError(Failure::timeout, -1, core_->prefix + what_ + ": deadline passed");
      std::this_thread::sleep_for(kPoll);
    }
  }

  void join_stream(Deadline) override {
    std::lock_guard lock(core_->mutex);
    core_->check_alive(what_);
    check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(core_->device), event_.get(), 0),
          "cudaStreamWaitEvent");
  }

  cudaEvent_t event() const { return event_.get(); }
  void release() { tensors_.clear(); }

 private:
  std::shared_ptr<Core> core_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  Event event_;
  bool succeeded_ = false;
};

void NcclGroup::Core::collapse(Failure kind, int peer, const std::string& cause) {
  if (!failure.empty()) return;
  failure = cause.empty() ? "aborted" : cause;
  failure_kind = kind;
  culprit = peer;
  if (comm) ncclCommAbort(std::exchange(comm, nullptr));
  // The abort has ended the kernels: nothing touches the tensors any more.
  for (const auto& operation : in_flight)
    operation->release();
  in_flight.clear();
}

void NcclGroup::Core::check_alive(const std::string& what) {
  if (failure.empty() && watch.done()) {
    try {
      watch.wait(std::chrono::steady_clock::now());
      collapse(Failure::mismatch, -1, "a peer sent what nobody asked for");
    } catch (const TransferError& error) {
      collapse(error.failure(), error.peer(), error.what());
    }
  }
  if (!failure.empty()) throw TransferError(failure_kind, culprit, prefix + what + ": " + failure);
}

void NcclGroup::Core::call(ncclResult_t result, const std::string& what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const std::string detail = comm ? ncclGetLastError(comm) : "";
  collapse(result == ncclRemoteError ? Failure::peer_lost : Failure::aborted, -1,
           std::string(ncclGetErrorString(result)) + (detail.empty() ? "" : " (" + detail + ")"));
  check_alive(what);
}

void NcclGroup::Core::settle(const std::string& what, Deadline deadline) {
  for (;;) {
    check_alive(what);
    ncclResult_t state = ncclSuccess;
    call(ncclCommGetAsyncError(comm, &state), what);
    call(state, what);
    if (state == ncclSuccess) return;
    if (std::chrono::steady_clock::now() >= deadline) {
      collapse(Failure::timeout, -1, "NCCL did not get ready in time");
      check_alive(what);
    }
    std::this_thread::sleep_for(kPoll);
  }
}

void NcclGroup::Core::reap() {
  while (!in_flight.empty() && in_flight.front()->finished()) {
    in_flight.front()->release();
    in_flight.pop_front();
  }
}

NcclGroup::NcclGroup(std::unique_ptr<Group> watch, int device, int max_ctas, Deadline deadline)
    : watch_(std::move(watch)) {
  const DeviceScope scope(device);
  core_ = std::make_shared<Core>(device);
  core_->prefix = "[tensor.nccl] group \"" + name() + "\" rank " + std::to_string(rank()) + ": ";

  ncclUniqueId id{};
  if (rank() == 0) core_->call(ncclGetUniqueId(&id), "making an id");
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof id)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &id, sizeof id);
  watch_->broadcast(bytes, 0).wait(deadline);
  std::memcpy(&id, bytes.data_ptr(), sizeof id);
  if (size() > 1) {
    const at::Tensor never = at::empty({1}, at::kByte);
    core_->watch = watch_->receive(never, (rank() + 1) % size());
  }

  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = max_ctas;
  std::lock_guard lock(core_->mutex);
  core_->call(ncclCommInitRankConfig(&core_->comm, size(), id, rank(), &config), "joining");
  core_->settle("joining", deadline);

  // Connects every pair now, so that no later operation stalls on it.
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, device);
  std::vector<PeerTensor> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    sends.push_back({at::empty({1}, options), peer});
    receives.push_back({at::empty({1}, options), peer});
  }
  exchange("warm-up", sends, receives).wait(deadline);
  all_reduce(at::empty({1}, options.dtype(at::kFloat)), ReduceOp::sum).wait(deadline);
}

NcclGroup::~NcclGroup() {
  std::lock_guard lock(core_->mutex);
  core_->reap();
  // Destroying would wait for the peers; by now nothing of use is under way.
  core_->collapse(Failure::aborted, rank(), "the group was destroyed");
}

Work NcclGroup::issue(const std::string& what, std::vector<at::Tensor> tensors,
                      const std::function<void(ncclComm_t, cudaStream_t)>& calls) {
  std::lock_guard lock(core_->mutex);
  const DeviceScope scope(core_->device);
  core_->check_alive(what);
  core_->reap();
  auto operation = std::make_shared<Operation>(core_, what, std::move(tensors));
  const cudaStream_t stream = core_->stream.get();
  const Event ready;
  check(cudaEventRecord(ready.get(), c10::cuda::getCurrentCUDAStream(core_->device)),
        "cudaEventRecord");
  check(cudaStreamWaitEvent(stream, ready.get(), 0), "cudaStreamWaitEvent");
  core_->call(ncclGroupStart(), what);
  calls(core_->comm, stream);
  core_->call(ncclGroupEnd(), what);
  core_->settle(what, within(kIssueLimit));
  check(cudaEventRecord(operation->event(), stream), "cudaEventRecord");
  core_->in_flight.push_back(operation);
  return Work(operation);
}

Work NcclGroup::exchange(const std::string& what, const std::vector<PeerTensor>& sends,
                         const std::vector<PeerTensor>& receives) {
  std::vector<at::Tensor> tensors;
  for (const PeerTensor& part : sends)
    tensors.push_back(part.tensor);
  for (const PeerTensor& part : receives)
    tensors.push_back(part.tensor);
  return issue(what, std::move(tensors), [&](ncclComm_t comm, cudaStream_t stream) {
    for (const auto& [tensor, peer] : sends) {
      if (tensor.nbytes() == 0) continue;
      core_->call(ncclSend(tensor.data_ptr(), tensor.nbytes(), ncclInt8, peer, comm, stream), what);
      core_->counters.bytes_sent += tensor.nbytes();
      ++core_->counters.messages_sent;
    }
    for (const auto& [tensor, peer] : receives) {
      if (tensor.nbytes() == 0) continue;
      core_->call(ncclRecv(tensor.data_ptr(), tensor.nbytes(), ncclInt8, peer, comm, stream), what);
      core_->counters.bytes_received += tensor.nbytes();
      ++core_->counters.messages_received;
    }
  });
}

Work NcclGroup::send(const at::Tensor& in, int destination) {
  const std::string what = "send to rank " + std::to_string(destination);
  check_peer(what, destination);
  return exchange(what, {{readable(what, in), destination}}, {});
}

Work NcclGroup::receive(const at::Tensor& out, int source) {
  const std::string what = "receive from rank " + std::to_string(source);
  check_peer(what, source);
  check_writable(what, out);
  return exchange(what, {}, {{out, source}});
}

Work NcclGroup::grouped(const std::vector<PeerTensor>& sends,
                        const std::vector<PeerTensor>& receives) {
  const std::string what = "grouped transfer";
  std::vector<PeerTensor> parts;
  for (const auto& [tensor, peer] : receives) {
    check_peer(what, peer);
    check_writable(what, tensor);
  }
  for (const auto& [tensor, peer] : sends) {
    check_peer(what, peer);
    parts.push_back({readable(what, tensor), peer});
  }
  return exchange(what, parts, receives);
}

Work NcclGroup::broadcast(const at::Tensor& inout, int root) {
  const std::string what = "broadcast from rank " + std::to_string(root);
  if (root < 0 || root >= size()) refuse(what + ": no such rank");
  if (root != rank()) check_writable(what, inout);
  const at::Tensor bytes = readable(what, inout);
  return issue(what, {bytes}, [&](ncclComm_t comm, cudaStream_t stream) {
    core_->call(ncclBroadcast(bytes.data_ptr(), bytes.data_ptr(), bytes.nbytes(), ncclInt8, root,
                              comm, stream),
                what);
  });
}

Work NcclGroup::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) {
  const at::Tensor bytes = readable("all-gather", in);
  return all_to_all(outs, std::vector<at::Tensor>(size(), bytes));
}

Work NcclGroup::all_to_all(const std::vector<at::Tensor>& outs,
                           const std::vector<at::Tensor>& ins) {
  const std::string what = "all-to-all";
  check_sizes(what, outs);
  check_sizes(what, ins);
  std::vector<PeerTensor> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    check_writable(what, outs[peer]);
    sends.push_back({readable(what, ins[peer]), peer});
    receives.push_back({outs[peer], peer});
  }
  if (outs[rank()].nbytes() != sends[rank()].tensor.nbytes())
    refuse(what + ": the own output and input differ in size");
  return exchange(what, sends, receives);
}

Work NcclGroup::all_reduce(const at::Tensor& inout, ReduceOp op) {
  const std::string what = "all-reduce of " + std::to_string(inout.nbytes()) + " bytes";
  check_writable(what, inout);
  const ncclDataType_t type = nccl_type(inout.scalar_type());
  if (type == ncclNumTypes) refuse(what + ": cannot reduce " + c10::toString(inout.scalar_type()));
  return issue(what, {inout}, [&](ncclComm_t comm, cudaStream_t stream) {
    core_->call(ncclAllReduce(inout.data_ptr(), inout.data_ptr(), inout.numel(), type,
                              op == ReduceOp::sum ? ncclSum : ncclMax, comm, stream),
                what);
  });
}

void NcclGroup::abort(const std::string& why) {
  watch_->abort(why);
  std::lock_guard lock(core_->mutex);
  core_->collapse(Failure::aborted, rank(), why);
}

Counters NcclGroup::counters() const {
  std::lock_guard lock(core_->mutex);
  return core_->counters;
}

at::Tensor NcclGroup::readable(const std::string& what, const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.device().index() != core_->device)
    refuse(what + ": not a tensor of CUDA device " + std::to_string(core_->device));
  return tensor.contiguous();
}

void NcclGroup::check_writable(const std::string& what, const at::Tensor& tensor) const {
  if (!readable(what, tensor).is_same(tensor))
    refuse(what + ": a tensor that is received into must be contiguous");
}

void NcclGroup::check_peer(const std::string& what, int peer) const {
  if (peer < 0 || peer >= size() || peer == rank()) refuse(what + ": not a peer");
}

void NcclGroup::check_sizes(const std::string& what, const std::vector<at::Tensor>& tensors) const {
  if (tensors.size() != static_cast<std::size_t>(size()))
    refuse(what + ": " + std::to_string(tensors.size()) + " tensors for " + std::to_string(size()) +
           " ranks");
}

void NcclGroup::refuse(const std::string& text) const {
  throw std::invalid_argument(core_->prefix + text);
}

}  // namespace troupe::tensor::nccl
