#include "transport/tensor/pair_device.h"

#include <system_error>

namespace troupe::tensor {

struct PairDevice::Joining {
  int peer;
  Sockets sockets;
  std::unique_ptr<Handshake> handshake;
};

PairDevice::PairDevice(const DeviceOptions& options)
    : engine_(std::make_shared<Engine>()), secret_(options.token) {}

void PairDevice::listen(UniqueFd listener, std::string address, bool same_user) {
  address_ = std::move(address);
  rendezvous_ =
      std::make_unique<Rendezvous>(engine_->io(), std::move(listener), secret_, same_user);
}

Answer PairDevice::read_answer(int control, std::span<UniqueFd> fds, Deadline deadline) {
  Answer answer;
  read_with_fds(control, &answer, sizeof answer, fds, deadline);
  if (!answer.accepted) throw Refused{answer.text()};
  return answer;
}

PairDevice::Sockets PairDevice::dial_peer(const std::string& name, int rank, int size,
                                          const std::string& address, Deadline deadline) {
  Sockets sockets;
  const auto greet = [&](Hello::Role role) {
    UniqueFd socket = dial(address, deadline);
    const Hello hello = Hello::make(role, name, rank, size);
    if (const auto reason = introduce(socket.get(), secret_, hello, deadline))
      throw Refused{*reason};
    return socket;
  };
  sockets.control = greet(Hello::Role::control);
  if (needs_data_socket()) sockets.data = greet(Hello::Role::data);
  return sockets;
}

PairDevice::Sockets PairDevice::await_peer(const std::string& name, int peer, int size,
                                           Deadline deadline) {
  auto control = rendezvous_->claim(name, peer, Hello::Role::control, deadline);
  if (control.hello.size != static_cast<std::uint32_t>(size)) {
    const Answer answer = Answer::refusal("the group has " + std::to_string(size) + " ranks, not " +
                                          std::to_string(control.hello.size));
    write_all(control.socket.get(), &answer, sizeof answer, deadline);
    throw Refused{"it takes the group to have " + std::to_string(control.hello.size) + " ranks"};
  }
  Sockets sockets;
  sockets.control = std::move(control.socket);
  if (needs_data_socket())
    sockets.data = rendezvous_->claim(name, peer, Hello::Role::data, deadline).socket;
  return sockets;
}

std::unique_ptr<Group> PairDevice::connect(const std::string& name, int rank,
                                           const std::vector<std::string>& addresses,
                                           Deadline deadline) {
  const int size = static_cast<int>(addresses.size());
  const std::string backend_name = to_string(backend());
  const std::string prefix =
      "[tensor." + backend_name + "] group \"" + name + "\" rank " + std::to_string(rank) + ": ";
  if (name.empty() || name.size() > Hello::kMaxName)
    throw std::invalid_argument(prefix + "a group's name has 1 to " +
                                std::to_string(Hello::kMaxName) + " bytes");
  if (rank < 0 || rank >= size)
    throw std::invalid_argument(prefix + "no such rank among " + std::to_string(size) +
                                " addresses");

  int peer = -1;
  std::vector<Joining> joining;
  std::vector<PeerConnection> connections;
  try {
    for (peer = 0; peer < rank; ++peer) {
      Sockets sockets = dial_peer(name, rank, size, addresses[peer], deadline);
      auto handshake = guest(std::move(sockets.data));
      joining.push_back({peer, std::move(sockets), std::move(handshake)});
    }
    for (peer = rank + 1; peer < size; ++peer) {
      Sockets sockets = await_peer(name, peer, size, deadline);
      auto handshake = host(std::move(sockets.data), size);
      handshake->offer(sockets.control.get(), deadline);
      joining.push_back({peer, std::move(sockets), std::move(handshake)});
    }
    for (Joining& link : joining) {
      peer = link.peer;
      auto stream = link.handshake->complete(link.sockets.control.get(), deadline);
      connections.push_back({peer, std::move(stream), std::move(link.sockets.control)});
    }
  } catch (const Refused& refused) {
    throw TransferError(Failure::refused, peer,
                        prefix + "rank " + std::to_string(peer) + " refused: " + refused.reason);
  } catch (const std::system_error& error) {
    const Failure failure =
        error.code().value() == ETIMEDOUT ? Failure::timeout : Failure::peer_lost;
    throw TransferError(failure, peer,
                        prefix + "joining rank " + std::to_string(peer) + ": " + error.what());
  }
  return std::make_unique<PairGroup>(engine_, backend_name, name, rank, size,
                                     std::move(connections));
}

}  // namespace troupe::tensor
