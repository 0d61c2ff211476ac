#include "transport/calls/held_value.h"

#include "transport/calls/exchange.h"

namespace troupe::calls {

HeldValue::HeldValue(std::weak_ptr<Exchange> exchange, Holder holder, control::BlobId blob,
                     std::uint64_t bytes)
    : exchange_(std::move(exchange)), holder_(std::move(holder)), blob_(blob), bytes_(bytes) {}

HeldValue::~HeldValue() {
  if (const auto exchange = exchange_.lock()) exchange->release(holder_, blob_);
}

Result<std::shared_ptr<const std::string>> HeldValue::fetch(Milliseconds deadline) {
  const auto exchange = exchange_.lock();
  if (!exchange) return Error{ErrorCode::lost, "[future] the client has ended"};
  return exchange->fetch(holder_, blob_, bytes_, deadline);
}

}  // namespace troupe::calls
