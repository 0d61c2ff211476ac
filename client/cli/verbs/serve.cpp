#include <unistd.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <csignal>
#include <iostream>
#include <thread>

#include "base/format.h"
#include "base/log_line.h"
#include "base/numbers.h"
#include "base/text.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/named_model.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "models/spec/model_spec.h"
#include "transport/control/key_folder.h"
#include "web/api_keys.h"
#include "web/gateway.h"
#ifdef TROUPE_WITH_CLUSTER
#include "client/cli/verbs/start.h"
#include "controller/app/cluster.h"
#endif

namespace troupe::cli {
namespace {

/// Ends this process, as SIGTERM does, when standard input ends.
class StdinWatch {
 public:
  explicit StdinWatch(bool wanted) {
    if (!wanted) return;
    stream_.assign(::dup(STDIN_FILENO));
    read();
    thread_ = std::thread([this] { io_.run(); });
  }
  ~StdinWatch() {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }
  StdinWatch(const StdinWatch&) = delete;
  StdinWatch& operator=(const StdinWatch&) = delete;

 private:
  void read() {
    stream_.async_read_some(boost::asio::buffer(piece_), [this](const auto& error, std::size_t) {
      if (error) return static_cast<void>(::kill(::getpid(), SIGTERM));
      read();
    });
  }

  boost::asio::io_context io_{1};
  boost::asio::posix::stream_descriptor stream_{io_};
  std::array<char, 256> piece_{};
  std::thread thread_;
};

class ServeVerb : public Verb {
 public:
  explicit ServeVerb(Options& options) : Verb(options) {
    app_->add_option(
            "--connect", endpoints_,
            "The cluster to serve: ipc://PATH, tcp://HOST:PORT or HOST:PORT; repeat it for "
            "several (default: this user's own cluster, " +
                client::default_endpoint() + ")")
        ->check(not_empty())
        ->envname("TROUPE_ADDRESS")
        ->type_name("ENDPOINT");
    add_keys_option(*app_, keys_, "Folder with server.pub and client.key, for clusters on tcp://");
    app_->add_option("--http", http_, "Where to listen")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
    app_->add_option("--api-keys", options_.api_keys,
                     "File with the keys that requests must come with (docs/http.md)")
        ->check(not_empty())
        ->type_name("FILE");
    app_->add_option("--new-key", new_key_,
                     "With --api-keys: make a key of this name, print it once, add it to the file, "
                     "and end")
        ->check(not_empty())
        ->type_name("NAME");
    app_->add_flag(
        "--insecure", options_.insecure,
        "Beyond a loopback address without --api-keys: whoever reaches the port is let in");
    app_->add_option("--tls-cert", options_.tls_certificate,
                     "Speak TLS, with this certificate (PEM)")
        ->check(not_empty())
        ->type_name("FILE");
    app_->add_option("--tls-key", options_.tls_key, "The certificate's private key (PEM)")
        ->check(not_empty())
        ->type_name("FILE");
    app_->add_option("--allow-host", options_.allowed_hosts,
                     "On a loopback address: a further name that requests may call it by, behind a "
                     "proxy for example (repeatable)")
        ->check(not_empty())
        ->type_name("NAME");
    app_->add_option(
            "--allow-models", allow_models_,
            "A further folder whose models, LoRAs and embeddings requests may name, besides the "
            "cluster's own model (repeatable)")
        ->check(not_empty())
        ->type_name("DIR|NAME");
    app_->add_flag("--end-with-stdin", end_with_stdin_,
                   "End when standard input is closed: for a program that starts it and may be "
                   "killed");
    app_->add_option("--max-connections", options_.max_connections, "At one time")
        ->check(whole(16, 100000))
        ->type_name("N")
        ->capture_default_str();
#ifdef TROUPE_WITH_CLUSTER
    const std::string group = "A cluster of its own";
    add_model_option(*app_, cluster_.model, "Start a cluster, and serve this model")->group(group);
    add_parts_options(*app_, parts_, group);
    add_actors_option(*app_, cluster_.actors, 1, "With --model: actors to start")->group(group);
    add_device_option(*app_, cluster_.device, "With --model: what actors compute on: cpu or cuda")
        ->group(group);
    add_model_plugin_option(*app_);
    add_threads_option(*app_, cluster_.threads_per_actor);
    add_actors_per_gpu_option(*app_, cluster_.actors_per_gpu);
    add_prompt_cache_option(*app_, cluster_.prompt_cache_bytes);
#endif
    set_footer(
        "Prints the links once it answers. Ctrl-C ends it, and with it a cluster of its own; other "
        "clusters and their jobs go on.",
        {"troupe serve --model DIR --actors 4", "troupe serve --connect ipc:///run/a.sock",
         "troupe serve --http 0.0.0.0:7480 --api-keys keys --tls-cert cert.pem --tls-key key.pem"},
        "http.md");
  }

  void check() override {
    if (!new_key_.empty()) {
      if (options_.api_keys.empty()) throw UsageError("--new-key needs --api-keys");
      return;
    }
    settle_address();
    if (options_.tls_certificate.empty() != options_.tls_key.empty())
      throw UsageError("--tls-cert and --tls-key go together");
#ifdef TROUPE_WITH_CLUSTER
    const auto model = app_->get_option("--model")->source();
    const auto other = app_->get_option("--connect")->source();
    if (model == Source::command_line && other == Source::command_line)
      throw UsageError("--model starts a cluster: it does not go with --connect");
    owns_cluster_ = !cluster_.model.empty() && (other == Source::built_in || model > other);
    if (owns_cluster_) {
      if (app_->count("--keys") > 0)
        throw UsageError("--keys goes with --connect: a cluster of its own asks for none");
      return check_actors_per_gpu(cluster_.actors_per_gpu, cluster_.device);
    }
    for (const char* option : {"--actors", "--device", "--threads-per-actor", "--actors-per-gpu",
                               "--prompt-cache", "--model-plugin", "--fetch", "--base", "--vae",
                               "--text-encoder", "--text-encoder-2", "--text-encoder-3"})
      if (app_->count(option) > 0)
        throw UsageError(std::string(option) + " goes with --model only, which starts a cluster");
#endif
  }

  int run() override {
    if (!new_key_.empty()) return add_key();
    options_.allowed_models = allowed_folders(allow_models_);
#ifdef TROUPE_WITH_CLUSTER
    if (owns_cluster_) return serve_own_cluster();
#endif
    if (endpoints_.empty()) endpoints_.push_back(client::default_endpoint());
    for (const auto& endpoint : endpoints_)
      options_.clusters.push_back({checked_endpoint(endpoint), keys_});
    options_.on_cluster = [](const std::string& endpoint, const std::string& why) {
      log_line("the cluster " + endpoint + (why.empty() ? " is back" : " is gone: " + why));
    };
    SignalWatch signals;
    StdinWatch input(end_with_stdin_);
    const auto gateway = begin();
    ActOnSignal stop(signals, [&] { gateway->stop(); });
    for (const auto& cluster : options_.clusters) {
      const auto reached =
          Client::connect(cluster.endpoint, std::chrono::seconds(5), cluster.keys, signals.token());
      if (signals.caught()) return kOk;
      if (!reached) std::cerr << "troupe: warning: " << one_line(reached.error().what) << std::endl;
    }
    std::cout << ready_text(*gateway, 0) << std::flush;
    gateway->run();
    return kOk;
  }

 private:
  void settle_address() {
    const std::size_t colon = http_.rfind(':');
    const auto port =
        parse_number<std::uint16_t>(colon == http_.npos ? http_ : http_.substr(colon + 1));
    if (!port)
      throw UsageError("--http \"" + http_ + "\" is no ADDRESS:PORT, as in 127.0.0.1:7480");
    options_.port = *port;
    if (colon == http_.npos) return;
    options_.address = http_.substr(0, colon);
    if (options_.address == "localhost") options_.address = "127.0.0.1";
    if (options_.address.starts_with('[') && options_.address.ends_with(']'))
      options_.address = options_.address.substr(1, options_.address.size() - 2);
  }

  int add_key() const {
    const auto made = [&] {
      try {
        return web::add_key(options_.api_keys, new_key_);
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(by_option(error.what(), {{"keys", "--api-keys"}}));
      }
    }();
    if (json()) {
      print_json({{"name", new_key_}, {"key", made.key}});
    } else {
      std::cout << made.key << std::endl;
    }
    return kOk;
  }

  std::unique_ptr<web::Gateway> begin() const {
    try {
      return std::make_unique<web::Gateway>(options_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error(by_option(error.what(), {{"keys", "--api-keys"},
                                                        {"model", "--allow-models"},
                                                        {"http", "--http"},
                                                        {"tls-cert", "--tls-cert"},
                                                        {"tls-key", "--tls-key"}}));
    }
  }

  std::string ready_text(const web::Gateway& gateway, int actors) const {
    if (json()) {
      nlohmann::json clusters = nlohmann::json::array();
      for (const auto& cluster : options_.clusters)
        clusters.push_back(cluster.endpoint);
      nlohmann::json ready = {{"url", gateway.url()}, {"pid", getpid()}, {"clusters", clusters}};
      if (actors > 0) ready["actors"] = actors;
      return ready.dump(2) + "\n";
    }
    std::string text = "page      " + gateway.url() + "/\nOpenAI    " + gateway.url() +
                       "/v1\njobs      " + gateway.url() + "/api/v1/jobs\n";
    for (const auto& cluster : options_.clusters)
      text += "cluster   " + cluster.endpoint + "\n";
    if (actors > 0) text += fmt::format("actors    {} ready\n", actors);
    return text;
  }

#ifdef TROUPE_WITH_CLUSTER
  int serve_own_cluster() {
    cluster_.model = found_model(cluster_.model, parts_);
    read_model_folder(cluster_.model);
    // Who asks over HTTP may be somebody else: folders as a cluster on tcp takes them.
    cluster_.allow_models = options_.allowed_models;
    cluster_.allow_models->push_back(cluster_.model);
    check_crowding(cluster_.actors, cluster_.threads_per_actor, cluster_.device);
    SignalWatch signals;
    StdinWatch input(end_with_stdin_);
    cluster::Cluster cluster(cluster_);
    options_.clusters = {{cluster.endpoint(), ""}};
    const auto gateway = begin();
    std::string failure;
    std::thread side([&] {
      try {
        {
          const StartingView view(cluster_.actors, false);
          cluster.wait_ready(ready_deadline(cluster_.actors));
        }
        if (!signals.caught()) std::cout << ready_text(*gateway, cluster_.actors) << std::flush;
        cluster.run_until_stopped();
      } catch (const std::exception& error) {
        if (!signals.caught()) failure = error.what();
      }
      gateway->stop();
    });
    {
      ActOnSignal stop(signals, [&] { cluster.stop(); });
      gateway->run();
    }
    cluster.stop();
    side.join();
    if (!failure.empty()) throw std::runtime_error(by_option(failure, {}));
    return kOk;
  }

  cluster::ClusterOptions cluster_;
  ModelParts parts_;
  bool owns_cluster_ = false;
#endif
  std::vector<std::string> allow_models_;
  web::GatewayOptions options_;
  std::vector<std::string> endpoints_;
  std::string keys_;
  std::string http_ = "127.0.0.1:7480";
  std::string new_key_;
  bool end_with_stdin_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_serve(Options& options) {
  return std::make_unique<ServeVerb>(options);
}

}  // namespace troupe::cli
