#pragma once
#include <memory>
#include <utility>

#include "controller/deployments/environment.h"

namespace troupe::sim {

/// The world as one life of a controller sees it: what it has asked for and waits for goes with it.
class Door final : public cluster::Environment {
 public:
  explicit Door(cluster::Environment& world) : world_(world) {}

  /// A handler that does nothing once this door is gone.
  template <class Handler>
  auto while_open(Handler handler) {
    return [open = std::weak_ptr<int>(open_), handler = std::move(handler)](auto&&... values) {
      if (!open.expired()) handler(std::forward<decltype(values)>(values)...);
    };
  }

  double now() const override { return world_.now(); }
  std::uint64_t random() override { return world_.random(); }
  void after(double seconds, std::function<void()> action) override {
    world_.after(seconds, while_open(std::move(action)));
  }
  bool send_frame(control::PeerId peer, std::string frame) override {
    return world_.send_frame(peer, std::move(frame));
  }
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override {
    world_.request_frame(peer, std::move(frame), deadline, while_open(std::move(handler)));
  }
  void drop(control::PeerId peer, const std::string& why) override { world_.drop(peer, why); }
  std::optional<double> last_progress(control::PeerId peer) const override {
    return world_.last_progress(peer);
  }
  void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                  control::Milliseconds deadline, control::BlobHandler handler) override {
    world_.fetch_blob(incarnation, blob, deadline, while_open(std::move(handler)));
  }
  control::BlobId keep_blob(control::BlobBytes bytes) override {
    return world_.keep_blob(std::move(bytes));
  }
  void drop_blob(control::BlobId id) override { world_.drop_blob(id); }
  std::uint32_t spawn(const cluster::Actor& place, std::uint64_t incarnation) override {
    return world_.spawn(place, incarnation);
  }
  void kill(cluster::ActorId id, const std::string& why) override { world_.kill(id, why); }

 private:
  cluster::Environment& world_;
  std::shared_ptr<int> open_ = std::make_shared<int>(0);
};

}  // namespace troupe::sim
