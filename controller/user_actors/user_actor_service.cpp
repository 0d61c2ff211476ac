#include "controller/user_actors/user_actor_service.h"

#include <charconv>
#include <iterator>
#include <utility>

namespace troupe::user {
namespace {

/// Milliseconds for the way of the order and of its answer.
constexpr control::Milliseconds kCheckWay{10'000};

std::string attribute(const wire::Hello& hello, const std::string& name) {
  const auto found = hello.attributes.find(name);
  return found == hello.attributes.end() ? "" : found->second;
}

/// Reads "0,2" as {0, 2}.
std::vector<std::int32_t> numbers(const std::string& text) {
  std::vector<std::int32_t> all;
  const char* at = text.data();
  const char* end = at + text.size();
  for (std::int32_t value = 0; at < end;) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc()) break;
    all.push_back(value);
    at = next < end && *next == ',' ? next + 1 : end;
  }
  return all;
}

}  // namespace

UserActorService::UserActorService(boost::asio::io_context& io, cluster::Environment& environment,
                                   Options options)
    : environment_(environment),
      options_(std::move(options)),
      check_(io, options_.check),
      actors_({.environment = environment,
               .process_host = options_.process_host,
               .access = options_.access,
               .note = options_.note,
               .keyed = options_.keyed}) {
  actors_.add_host({options_.host, options_.cores, options_.gpus});
}

void UserActorService::check_plugins(std::function<void(std::optional<std::string>)> done) {
  checked_ = std::move(done);
  check_next(0);
}

void UserActorService::check_next(std::size_t index) {
  if (index == options_.plugins.size()) {
    for (auto& [name, joining] : std::exchange(joining_, {}))
      enter(std::move(joining.host), joining.checked);
    return std::exchange(checked_, nullptr)(std::nullopt);
  }
  check_.describe(options_.plugins[index], [this, index](wire::PluginReport report) {
    if (report.failure.empty()) {
      try {
        actors_.add_classes(report.classes);
      } catch (const std::exception& error) {
        report.failure = error.what();
      }
    }
    if (report.failure.empty()) {
      reports_.push_back(std::move(report));
      check_next(index + 1);
    } else {
      std::exchange(checked_, nullptr)(report.failure);
    }
    if (options_.on_checked) options_.on_checked();
  });
}

void UserActorService::host_joined(const std::string& name, const control::PeerInfo& agent) {
  drained_.erase(name);
  Host host{.name = name, .gpus = numbers(attribute(agent.hello, "gpus"))};
  const auto cores = numbers(attribute(agent.hello, "cores"));
  if (!cores.empty()) host.cores = cores.front();
  const control::Milliseconds deadline =
      kCheckWay + check_.deadline() * std::ssize(options_.plugins);
  environment_.request(agent.id, wire::CheckPlugins{options_.plugins}, deadline,
                       [this, host](const control::Reply& reply) {
                         if (reply.ok())
                           return host_checked(host, reply.as<wire::PluginsChecked>());
                         if (reply.failure().code == wire::FailureCode::lost) return;
                         wire::PluginsChecked none;
                         none.reports.resize(options_.plugins.size());
                         for (auto& report : none.reports)
                           report.failure = reply.failure().what;
                         host_checked(host, std::move(none));
                       });
}

void UserActorService::host_checked(Host host, wire::PluginsChecked checked) {
  if (reports_.size() == options_.plugins.size()) return enter(std::move(host), checked);
  const auto name = host.name;
  joining_[name] = {std::move(host), std::move(checked)};
}

void UserActorService::enter(Host host, const wire::PluginsChecked& checked) {
  for (std::size_t i = 0; i < options_.plugins.size(); ++i) {
    const auto& plugin = options_.plugins[i];
    std::string why;
    if (i >= checked.reports.size()) {
      why = "[plugin] " + plugin + ": it was not looked at";
    } else if (!checked.reports[i].failure.empty()) {
      why = checked.reports[i].failure;
    } else if (checked.reports[i].contents != reports_[i].contents) {
      why = "[plugin] " + checked.reports[i].file + ": is another version than on " + options_.host;
    }
    if (why.empty()) continue;
    if (options_.note)
      options_.note("no users' actors of " + plugin + " on " + host.name + ": " + why);
    host.lacks[plugin] = std::move(why);
  }
  host.draining = drained_.contains(host.name);
  actors_.add_host(std::move(host));
}

std::string UserActorService::drain_host(const std::string& name, bool now) {
  drained_.insert(name);
  return actors_.drain_host(name, now);
}

void UserActorService::stop(const std::string& why) {
  actors_.stop(why);
  check_.stop();
}

void UserActorService::host_lost(const std::string& host) {
  joining_.erase(host);
  drained_.erase(host);
  actors_.remove_host(host);
}

}  // namespace troupe::user
