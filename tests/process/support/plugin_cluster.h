#pragma once
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/user_actors/classes.h"
#include "transport/control/key_folder.h"
#include "troupe/actor.h"

namespace troupe::testing {

inline const std::string kPlugin = TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so";

template <class T>
T value_of(Result<T> result) {
  if (!result)
    throw std::runtime_error(to_string(result.error().code) + ": " + result.error().what);
  return std::move(result.value());
}

/// A controller with one actor and a plugin, on tcp with keys, and hosts that join it.
class PluginCluster {
 public:
  explicit PluginCluster(const std::string& plugin = kPlugin) : plugin_(plugin) {
    control::KeyFolder(keys()).make(false);
    auto options = actors(1);
    options.listen = "tcp://127.0.0.1:0";
    options.keys = keys();
    options.plugins = {plugin};
    cluster_ = std::make_unique<cluster::Cluster>(options);
    cluster_->wait_ready(kReadyDeadline);
    client_ = std::make_unique<Client>(connect());
  }

  Client connect() const {
    return value_of(Client::connect(cluster_->endpoint(), kPatience, keys()));
  }
  Client& client() { return *client_; }
  Actors users() { return client_->actors(); }
  std::string keys() const { return folder_ / "keys"; }
  std::string here() { return value_of(client_->status()).host; }

  /// Joins and returns when users' actors may live there, or may not for want of the plugin.
  Command& join(const std::string& name) { return join(name, {"--plugin", plugin_}); }
  Command& join(const std::string& name, const std::vector<std::string>& more) {
    const auto command = start(name, more);
    REQUIRE(eventually(kPatience, [&] { return !why_not(name).empty() || may_live_on(name); }));
    return *command;
  }
  std::shared_ptr<Command> start(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"join",   "--connect", cluster_->endpoint(), "--keys", keys(),
                                      "--name", name,        "--actors",           "1"};
    words.insert(words.end(), more.begin(), more.end());
    std::filesystem::create_directory(folder_ / name);
    guests_.push_back(std::make_shared<Command>(words, folder_ / name));
    return guests_.back();
  }

  /// Returns why that host lacks a class, as the list of classes says; "" = nothing.
  std::string why_not(const std::string& host) {
    for (const auto& each : value_of(users().classes())) {
      for (const auto& lack : each.lacking)
        if (lack.starts_with(host + ": ")) return lack;
    }
    return "";
  }
  UserActorInfo info(std::uint64_t id) {
    for (auto& each : value_of(users().list()))
      if (each.id == id) return each;
    throw std::runtime_error("no actor " + std::to_string(id));
  }
  template <class T>
  std::string host_of(const ActorHandle<T>& actor) {
    return info(actor.id()).host;
  }
  /// A probe on that host.
  ActorHandle<Probe> probe_on(const std::string& host, SpawnOptions options = {}) {
    // Spread out in a group of their own, actors go to one host after another.
    options.placement = "spread";
    options.group = "turn " + std::to_string(++turns_);
    std::vector<std::uint64_t> before;
    for (int i = 0; i < 8; ++i) {
      const auto counter =
          value_of(users().spawn<Counter>({.placement = "spread", .group = options.group}, 0));
      if (host_of(counter) != host) {
        before.push_back(counter.id());
        continue;
      }
      value_of(users().kill(counter.id()));
      auto probe = value_of(users().spawn<Probe>(options, "p"));
      for (const auto id : before)
        value_of(users().kill(id));
      REQUIRE(host_of(probe) == host);
      return probe;
    }
    throw std::runtime_error("no probe on " + host);
  }
  std::string failures() {
    std::string all;
    for (const auto& text : value_of(client_->status()).recent_failures)
      all += text + "\n";
    return all;
  }

 private:
  bool may_live_on(const std::string& host) {
    bool there = false;
    std::vector<std::uint64_t> tried;
    for (int i = 0; i < 4 && !there; ++i) {
      const auto probe =
          users().spawn<Counter>({.placement = "spread", .group = "joined " + host}, 0);
      if (!probe) return false;
      tried.push_back(probe.value().id());
      there = info(tried.back()).host == host;
    }
    for (const auto id : tried)
      value_of(users().kill(id));
    return there;
  }

  std::string plugin_;
  Scratch folder_;
  std::unique_ptr<cluster::Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::vector<std::shared_ptr<Command>> guests_;
  int turns_ = 0;
};

}  // namespace troupe::testing
