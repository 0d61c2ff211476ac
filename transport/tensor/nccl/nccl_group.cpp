#include "transport/tensor/nccl/nccl_group.h"

#include <ATen/ops/empty.h>

#include <cstdlib>

#include "transport/tensor/nccl/load_nccl.h"
#include "transport/tensor/nccl/ordered_reduce.h"
#include "transport/tensor/tcp.h"

namespace troupe::tensor::nccl {
namespace {

struct NcclType {
  ncclDataType_t type;
  bool exact;  ///< any order of a reduction gives the same bits
};

NcclType nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return {ncclFloat32, false};
    case at::kDouble:
      return {ncclFloat64, false};
    case at::kHalf:
      return {ncclFloat16, false};
    case at::kBFloat16:
      return {ncclBfloat16, false};
    case at::kInt:
      return {ncclInt32, true};
    case at::kLong:
      return {ncclInt64, true};
    case at::kChar:
      return {ncclInt8, true};
    case at::kByte:
      return {ncclUint8, true};
    default:
      return {ncclNumTypes, false};
  }
}

ReducedType reduced_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return ReducedType::kFloat64;
    case at::kHalf:
      return ReducedType::kFloat16;
    case at::kBFloat16:
      return ReducedType::kBFloat16;
    default:
      return ReducedType::kFloat32;
  }
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

/// NCCL's own sockets, bootstrap included, would listen on any interface that it likes. Before its
/// first communicator; what the user has set himself stands.
void keep_to_interface(const std::string& host) {
  const std::string interface = tcp::interface_of(host);
  if (!interface.empty()) ::setenv("NCCL_SOCKET_IFNAME", ("=" + interface).c_str(), 0);
}

class NcclDevice : public Device {
 public:
  explicit NcclDevice(const DeviceOptions& options)
      : options_(options), rendezvous_(options), address_("nccl:" + rendezvous_.address()) {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    if (options.cuda_device < 0 || options.cuda_device >= count)
      throw std::invalid_argument("[tensor.nccl] CUDA device " +
                                  std::to_string(options.cuda_device) + " of " +
                                  std::to_string(count));
    keep_to_interface(options.host);
  }

  ~NcclDevice() override {
    // Groups leave in threads of their own; the process should not end among them.
    std::unique_lock lock(turns_->mutex);
    turns_->changed.wait_for(lock, std::chrono::seconds(5), [&] { return turns_->leaving == 0; });
  }
  Backend backend() const override { return Backend::nccl; }
  const std::string& address() const override { return address_; }

  std::unique_ptr<Group> connect(const std::string& name, int rank,
                                 const std::vector<std::string>& addresses,
                                 Deadline deadline) override {
    std::vector<std::string> inner;
    for (const std::string& address : addresses) {
      if (!address.starts_with("nccl:"))
        throw std::invalid_argument("[tensor.nccl] not an nccl address: " + address);
      inner.push_back(address.substr(5));
    }
    return std::make_unique<NcclGroup>(rendezvous_.connect(name, rank, inner, deadline),
                                       options_.cuda_device, options_.max_ctas, turns_, deadline);
  }

 private:
  DeviceOptions options_;
  tcp::TcpDevice rendezvous_;
  std::string address_;
  std::shared_ptr<Turns> turns_ = std::make_shared<Turns>();
};

}  // namespace

NcclGroup::NcclGroup(std::unique_ptr<Group> watch, int device, int max_ctas,
                     std::shared_ptr<Turns> turns, Deadline deadline)
    : watch_(std::move(watch)) {
  Communicator::Settings settings;
  settings.device = device;
  settings.max_ctas = max_ctas;
  settings.prefix = "[tensor.nccl] group \"" + name() + "\" rank " + std::to_string(rank()) + ": ";
  settings.turns = std::move(turns);
  communicator_ = Communicator::join(std::move(settings), *watch_, deadline);
}

NcclGroup::~NcclGroup() {
  communicator_->close(std::move(watch_));
}

void NcclGroup::transfer(const std::string& what, const std::vector<Span>& sends,
                         const std::vector<Span>& receives) {
  bool travels = false;
  std::vector<Span> own;
  for (const Span& span : receives) {
    if (span.peer == rank()) own.push_back(span);
    travels |= span.peer != rank() && span.bytes > 0;
  }
  std::size_t copied = 0;
  for (const Span& span : sends) {
    travels |= span.peer != rank() && span.bytes > 0;
    if (span.peer != rank()) continue;
    const Span& out = own.at(copied++);
    if (span.bytes > 0 && out.data != span.data)
      check(cudaMemcpyAsync(out.data, span.data, span.bytes, cudaMemcpyDeviceToDevice,
                            communicator_->stream()),
            "cudaMemcpyAsync");
  }
  if (!travels) return;
  communicator_->grouped(what, [&](ncclComm_t comm) {
    for (const auto& [data, bytes, peer] : sends) {
      if (bytes == 0 || peer == rank()) continue;
      const ncclResult_t result =
          ncclSend(data, bytes, ncclInt8, peer, comm, communicator_->stream());
      if (result != ncclSuccess && result != ncclInProgress) return result;
      communicator_->count(bytes, 1, 0, 0);
    }
    for (const auto& [data, bytes, peer] : receives) {
      if (bytes == 0 || peer == rank()) continue;
      const ncclResult_t result =
          ncclRecv(data, bytes, ncclInt8, peer, comm, communicator_->stream());
      if (result != ncclSuccess && result != ncclInProgress) return result;
      communicator_->count(0, 0, bytes, 1);
    }
    return ncclSuccess;
  });
}

Work NcclGroup::exchange(const std::string& what, const std::vector<PeerTensor>& sends,
                         const std::vector<PeerTensor>& receives) {
  std::vector<at::Tensor> tensors;
  std::vector<Span> outgoing, incoming;
  for (const auto& [tensor, peer] : sends) {
    tensors.push_back(tensor);
    outgoing.push_back({bytes_of(tensor), tensor.nbytes(), peer});
  }
  for (const auto& [tensor, peer] : receives) {
    tensors.push_back(tensor);
    incoming.push_back({bytes_of(tensor), tensor.nbytes(), peer});
  }
  return communicator_->issue(what, std::move(tensors),
                              [&] { transfer(what, outgoing, incoming); });
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
  return communicator_->issue(what, {bytes}, [&] {
    if (bytes.nbytes() == 0 || size() == 1) return;
    communicator_->grouped(what, [&](ncclComm_t comm) {
      return ncclBroadcast(bytes.data_ptr(), bytes.data_ptr(), bytes.nbytes(), ncclInt8, root, comm,
                           communicator_->stream());
    });
    const std::uint64_t peers = size() - 1;
    if (rank() == root)
      communicator_->count(bytes.nbytes() * peers, peers, 0, 0);
    else
      communicator_->count(0, 0, bytes.nbytes(), 1);
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
  const NcclType type = nccl_type(inout.scalar_type());
  if (type.type == ncclNumTypes)
    refuse(what + ": cannot reduce " + c10::toString(inout.scalar_type()));
  // A sum of two is the same in either order. NCCL's maximum of floats drops NaN.
  if (!type.exact && (size() > 2 || op == ReduceOp::max)) return reduce_by_shares(what, inout, op);
  return communicator_->issue(what, {inout}, [&] {
    if (inout.numel() == 0 || size() == 1) return;
    communicator_->grouped(what, [&](ncclComm_t comm) {
      return ncclAllReduce(inout.data_ptr(), inout.data_ptr(), inout.numel(), type.type,
                           op == ReduceOp::sum ? ncclSum : ncclMax, comm, communicator_->stream());
    });
    const std::uint64_t peers = size() - 1, bytes = 2 * peers * inout.nbytes() / size();
    communicator_->count(bytes, 2 * peers, bytes, 2 * peers);
  });
}

Work NcclGroup::reduce_by_shares(const std::string& what, const at::Tensor& inout, ReduceOp op) {
  const std::int64_t count = inout.numel(), ranks = size();
  const std::size_t width = inout.element_size();
  const auto begin = [&](std::int64_t owner) { return count * owner / ranks; };
  const auto share = [&](int owner) {
    return Span{bytes_of(inout) + begin(owner) * width,
                static_cast<std::size_t>(begin(owner + 1) - begin(owner)) * width, owner};
  };
  const Span own = share(rank());
  const std::int64_t own_count = begin(rank() + 1) - begin(rank());
  const at::Tensor parts = at::empty({ranks, own_count}, inout.options().requires_grad(false));
  return communicator_->issue(what, {inout, parts}, [&] {
    if (count == 0 || ranks == 1) return;
    std::vector<Span> sends, receives;
    for (int peer = 0; peer < ranks; ++peer) {
      sends.push_back(share(peer));
      receives.push_back({bytes_of(parts) + peer * own.bytes, own.bytes, peer});
    }
    transfer(what, sends, receives);
    check(ordered_reduce(reduced_type(inout.scalar_type()), op == ReduceOp::max, parts.data_ptr(),
                         static_cast<int>(ranks), own_count, own.data, communicator_->stream()),
          "ordered_reduce");
    sends.clear();
    receives.clear();
    for (int peer = 0; peer < ranks; ++peer) {
      sends.push_back({own.data, own.bytes, peer});
      receives.push_back(share(peer));
    }
    transfer(what, sends, receives);
  });
}

void NcclGroup::begin_abort(const std::string& why) {
  watch_->abort(why);
  communicator_->begin_abort(Failure::aborted, rank(), why);
}

void NcclGroup::abort(const std::string& why) {
  watch_->abort(why);
  communicator_->abort(Failure::aborted, rank(), why);
}

Counters NcclGroup::counters() const {
  return communicator_->counters();
}

at::Tensor NcclGroup::readable(const std::string& what, const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.device().index() != communicator_->device())
    refuse(what + ": not a tensor of CUDA device " + std::to_string(communicator_->device()));
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
  throw std::invalid_argument(communicator_->prefix() + text);
}

}  // namespace troupe::tensor::nccl

const char* troupe_nccl_why_unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? nullptr : "there is no CUDA device";
}

troupe::tensor::Device* troupe_nccl_make_device(const troupe::tensor::DeviceOptions& options) {
  return new troupe::tensor::nccl::NcclDevice(options);
}
