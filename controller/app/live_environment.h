#pragma once
#include <boost/asio/io_context.hpp>

#include "controller/deployments/environment.h"
#include "controller/hosts/process_host.h"
#include "transport/control/blob_channel.h"

namespace troupe::cluster {

/// Environment, for real: sockets, processes, the steady clock. Lives on the io_context.
class LiveEnvironment final : public Environment {
 public:
  /// Token and keys with which actors connect to the controller.
  struct Access {
    std::string token;
    std::string keys;  // CURVE, as text; "" = the controller asks for none
  };
  LiveEnvironment(boost::asio::io_context& io, control::Server& server,
                  control::BlobServer& blob_server, control::BlobStore& blobs, Access access);
  /// Sets the host that starts and ends the process of a place. Must be called before the first
  /// spawn.
  void use(std::function<ProcessHost&(ActorId)> host_of) { host_of_ = std::move(host_of); }

  double now() const override;
  std::uint64_t random() override { return control::random_incarnation(); }
  void after(double seconds, std::function<void()> action) override;
  bool send_frame(control::PeerId peer, std::string frame) override;
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override;
  void drop(control::PeerId peer, const std::string& why) override;
  std::optional<double> last_progress(control::PeerId peer) const override;
  std::optional<Pace> pace(control::PeerId peer) const override;
  void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                  control::Milliseconds deadline, control::BlobHandler handler) override;
  control::BlobId keep_blob(control::BlobBytes bytes) override;
  void drop_blob(control::BlobId id) override;
  std::uint32_t spawn(const Actor& place, std::uint64_t incarnation) override;
  void kill(ActorId id, const std::string& why) override;

 private:
  boost::asio::io_context& io_;
  control::Server& server_;
  control::BlobServer& blob_server_;
  control::BlobStore& blobs_;
  Access access_;
  std::function<ProcessHost&(ActorId)> host_of_;
};

}  // namespace troupe::cluster
