#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/backend.h"
#include "transport/tensor/engine.h"
#include "transport/tensor/pair_group.h"
#include "transport/tensor/rendezvous.h"

namespace troupe::tensor {

/// The rendezvous of groups over pairs. Of two ranks the higher one dials; nobody waits for a peer
/// before it has dialled all that it has to, so the order in which members come does not matter.
class PairDevice : public Device {
 public:
  const std::string& address() const override { return address_; }
  std::unique_ptr<Group> connect(const std::string& name, int rank,
                                 const std::vector<std::string>& addresses,
                                 Deadline deadline) override;
  void give_up(const std::string& suffix) override { rendezvous_->give_up(suffix); }

 protected:
  PairDevice(const DeviceOptions& options);

  /// Begins to listen. To be called by the backend's constructor.
  void listen(UniqueFd listener, std::string address, bool same_user);

  Engine& engine() { return *engine_; }

  /// Makes one pair's stream, as the backend does it. The pair's ends: the host has the lower rank.
  class Handshake {
   public:
    virtual ~Handshake() = default;
    /// Host: accepts the guest, with what it needs. Guest: does nothing.
    virtual void offer(int control, Deadline deadline) = 0;
    /// Host: takes the guest's half. Guest: reads the host's offer and sends its own half.
    virtual std::unique_ptr<Stream> complete(int control, Deadline deadline) = 0;
  };

  /// Sockets of one pair: data only where `needs_data_socket`.
  struct Sockets {
    UniqueFd control;
    UniqueFd data;
  };

  virtual bool needs_data_socket() const = 0;
  virtual UniqueFd dial(const std::string& address, Deadline deadline) = 0;
  /// `size`: ranks of the group.
  virtual std::unique_ptr<Handshake> host(UniqueFd data, int size) = 0;
  virtual std::unique_ptr<Handshake> guest(UniqueFd data) = 0;

  /// Reads an answer and throws a refusal's reason; descriptors come with it.
  static Answer read_answer(int control, std::span<UniqueFd> fds, Deadline deadline);

 private:
  struct Joining;
  Sockets dial_peer(const std::string& name, int rank, int size, const std::string& address,
                    Deadline deadline);
  Sockets await_peer(const std::string& name, int peer, int size, Deadline deadline);

  std::shared_ptr<Engine> engine_;
  Secret secret_;
  std::string address_;
  std::unique_ptr<Rendezvous> rendezvous_;
};

/// Thrown for an answer's refusal, on its way out of `connect`.
struct Refused {
  std::string reason;
};

}  // namespace troupe::tensor
