#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::web {

struct GatewayOptions {
  struct Cluster {
    std::string endpoint;  // ipc://… or tcp://…
    std::string keys;      // folder, for tcp; "" = none
  };
  std::vector<Cluster> clusters;
  /// Folders whose models, LoRAs and embeddings requests may name, besides a cluster's own model,
  /// on clusters of this machine: these take any path of a client that is the same user. Clusters
  /// over tcp have lists of their own.
  std::vector<std::string> allowed_models = {};
  std::string address = "127.0.0.1";  // numeric
  int port = 7480;                    // 0 = any free one
  std::string api_keys;               // file with who may ask; "" = everybody who reaches the port
  bool insecure = false;              // beyond loopback without keys
  std::string tls_certificate, tls_key;    // files in PEM; "" = without TLS
  std::vector<std::string> allowed_hosts;  // further names that this place has
  int max_connections = 4096;
  /// Called on the gateway's loop: a cluster that was there is gone, and why; or is back ("").
  std::function<void(const std::string& endpoint, const std::string& why)> on_cluster = {};
};

/// The HTTP gateway: OpenAI's images and videos, jobs with their progress, the page. Speaks to its
/// clusters by the client API alone. docs/http.md tells what it answers.
class Gateway {
 public:
  /// Listens. Throws std::runtime_error in one line naming what is wrong: the address, the file of
  /// keys, the certificate, a folder.
  explicit Gateway(const GatewayOptions& options);
  ~Gateway();
  Gateway(const Gateway&) = delete;
  Gateway& operator=(const Gateway&) = delete;

  /// "http://127.0.0.1:7480", with the real port.
  const std::string& url() const;
  /// Answers requests on this thread until `stop`.
  void run();
  /// Makes `run` return. May be called from any thread.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::web
