#pragma once
#include <boost/asio/io_context.hpp>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "controller/app/live_environment.h"
#include "controller/hosts/local_process_host.h"
#include "controller/user_actors/user_actor_service.h"
#include "transport/control/endpoint.h"
#include "troupe/actor.h"
#include "troupe/client.h"

namespace troupe::testing {

/// A controller that has nothing but users' actors, on a thread of its own: starts in milliseconds
/// and needs no torch.
class SmallCluster {
 public:
  struct Options {
    std::vector<std::string> plugins = {TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so"};
    double cores = 4;
    std::vector<std::int32_t> gpus = {0, 1};
    std::string listen = {};      // "" = ipc
    std::string log_folder = {};  // "" = none
  };
  SmallCluster() : SmallCluster(Options{}) {}
  explicit SmallCluster(Options options);
  ~SmallCluster();

  const std::string& endpoint() const { return endpoint_; }
  /// Returns why a plugin was refused; "" = none was.
  const std::string& refusal() const { return refusal_; }
  Client connect() const;
  std::size_t processes();

 private:
  template <class F>
  auto on_loop(F&& action);

  boost::asio::io_context io_;
  control::IpcFolder folder_;
  control::BlobStore blobs_;
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blob_server_;
  std::unique_ptr<cluster::LiveEnvironment> environment_;
  std::unique_ptr<cluster::LocalProcessHost> processes_;
  std::unique_ptr<user::UserActorService> room_;
  std::string endpoint_;
  std::string refusal_;
  std::thread thread_;
};

/// The value, or a failed test with the error's text.
template <class T>
T take(Result<T> result) {
  if (!result)
    throw std::runtime_error(to_string(result.error().code) + ": " + result.error().what);
  return std::move(result.value());
}

}  // namespace troupe::testing
