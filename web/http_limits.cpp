#include "web/http_limits.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <tuple>

namespace troupe::web {

namespace asio = boost::asio;

std::string owner_of(const asio::ip::address& address) {
  if (!address.is_v6() || address.to_v6().is_v4_mapped()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string() + "/64";
}

void Turns::add(const std::string& owner, std::function<void()> serve) {
  const auto same = std::ranges::find(owners_, owner, &Waiting::owner);
  auto& of = same == owners_.end() ? owners_.emplace_back(Waiting{owner, {}}) : *same;
  of.requests.push_back(std::move(serve));
  if (!std::exchange(is_posted_, true)) post();
}

void Turns::post() {
  asio::post(executor_, [self = shared_from_this()] { self->serve_next(); });
}

void Turns::serve_next() {
  is_posted_ = false;
  if (owners_.empty()) return;
  auto serve = std::move(owners_.front().requests.front());
  owners_.front().requests.pop_front();
  if (owners_.front().requests.empty()) {
    owners_.pop_front();
  } else {
    owners_.splice(owners_.end(), owners_, owners_.begin());
  }
  if (!owners_.empty()) {
    is_posted_ = true;
    post();
  }
  serve();
}

Owners::pointer ServerLimits::join(const std::string& name) {
  auto& owner = *owners.try_emplace(name).first;
  ++owner.second.connections;
  return &owner;
}

void ServerLimits::leave(Owners::pointer owner) {
  --owner->second.connections;
  forget(owner);
}

void ServerLimits::forget(Owners::pointer owner) {
  if (owner->second.connections == 0 && owner->second.body_bytes == 0) owners.erase(owner->first);
}

bool ServerLimits::has_body_room(const Owner& owner, std::size_t more) const {
  return owner.body_bytes + more <= options.most_body_bytes_of_one;
}

void ServerLimits::count_body(Owners::pointer owner, std::size_t before, std::size_t after) {
  body_bytes += after - before;
  owner->second.body_bytes += after - before;
  forget(owner);
}

ServerConnection* ServerLimits::who_goes(const std::string& newcomer) const {
  const auto connections = [](const ServerConnection* one) {
    return one->owner->second.connections;
  };
  ServerConnection* goes = nullptr;
  for (const auto& [number, one] : waiting)
    if (!goes || connections(one) > connections(goes)) goes = one;
  if (goes) return goes;
  const auto own = owners.find(newcomer);
  const std::size_t with_new = 1 + (own == owners.end() ? 0 : own->second.connections);
  const auto order = [&](const ServerConnection* one) {
    return std::tuple(connections(one), one->answers(), ~one->turn_began);
  };
  for (ServerConnection* one : all) {
    const bool is_own = own != owners.end() && one->owner == &*own;
    const bool may_go = is_own ? one->answers() : connections(one) > with_new;
    if (may_go && (!goes || order(one) > order(goes))) goes = one;
  }
  return goes;
}

bool ServerLimits::make_room(ServerConnection* who, std::size_t bytes, std::size_t& total,
                             std::size_t most, std::size_t ServerConnection::*held) {
  while (total + bytes > most) {
    const auto holds = [&](const ServerConnection* one) {
      return one->*held + (one == who ? bytes : 0);
    };
    std::map<std::string, std::size_t> of_peer;
    for (const ServerConnection* one : all)
      of_peer[one->peer] += holds(one);
    ServerConnection* largest = who;
    for (ServerConnection* one : all) {
      const auto size = [&](const ServerConnection* s) {
        return std::tuple(of_peer[s->peer], holds(s), ~s->turn_began);
      };
      if (size(one) > size(largest)) largest = one;
    }
    if (largest == who || holds(largest) == 0) return false;
    ++counts.cut_off;
    largest->close();
  }
  return true;
}

namespace {

/// Memory of a request whose body has come. It is given back on the server's thread.
class CountedMemory final : public RequestMemory {
 public:
  CountedMemory(asio::any_io_executor executor, std::shared_ptr<ServerLimits> limits,
                std::string owner, std::size_t bytes)
      : executor_(std::move(executor)),
        limits_(std::move(limits)),
        owner_(std::move(owner)),
        bytes_(bytes) {}
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;
  ~CountedMemory() override {
    if (bytes_ == 0) return;
    asio::post(executor_, [limits = std::move(limits_), owner = std::move(owner_), bytes = bytes_] {
      limits->count_body(&*limits->owners.find(owner), bytes, 0);
    });
  }
  bool resize(std::size_t bytes) override {
    auto& owner = *limits_->owners.try_emplace(owner_).first;
    const bool fits = bytes <= bytes_ ||
                      (limits_->has_body_room(owner.second, bytes - bytes_) &&
                       limits_->body_bytes + (bytes - bytes_) <= limits_->options.most_body_bytes);
    limits_->count_body(&owner, bytes_, fits ? bytes : bytes_);
    if (fits) bytes_ = bytes;
    return fits;
  }

 private:
  asio::any_io_executor executor_;
  std::shared_ptr<ServerLimits> limits_;
  std::string owner_;
  std::size_t bytes_;
};

}  // namespace

RequestMemoryPtr count_memory(asio::any_io_executor executor, std::shared_ptr<ServerLimits> limits,
                              std::string owner, std::size_t bytes) {
  return std::make_shared<CountedMemory>(std::move(executor), std::move(limits), std::move(owner),
                                         bytes);
}

}  // namespace troupe::web
