#pragma once
#include <memory>

#include "transport/control/blob_store.h"
#include "troupe/actor_future.h"

namespace troupe::calls {

class Exchange;

/// Endpoint at which an actor's process gives out large values, and what lets a process in there.
struct BlobDoor {
  std::string endpoint;
  std::string ticket;
  std::string keys;  // CURVE, as text; "" = asks for none
};

/// Actor that holds a value, and the door to it.
struct Holder {
  std::uint64_t actor = 0;
  std::uint64_t incarnation = 0;
  BlobDoor door;
};

/// A large result at the actor that made it. Destroying the HeldValue releases the result there.
class HeldValue final : public detail::RemoteValue {
 public:
  HeldValue(std::weak_ptr<Exchange> exchange, Holder holder, control::BlobId blob,
            std::uint64_t bytes);
  ~HeldValue() override;

  std::uint64_t bytes() const override { return bytes_; }
  Result<std::shared_ptr<const std::string>> fetch(Milliseconds deadline) override;
  const Holder& holder() const { return holder_; }
  control::BlobId blob() const { return blob_; }

 private:
  std::weak_ptr<Exchange> exchange_;
  Holder holder_;
  control::BlobId blob_;
  std::uint64_t bytes_;
};

}  // namespace troupe::calls
