#include "controller/user_actors/plugin_check.h"

#include <signal.h>

#include <boost/asio/post.hpp>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::user {
namespace {

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> fields;
  std::size_t at = 0;
  for (;;) {
    const auto tab = line.find('\t', at);
    fields.push_back(line.substr(at, tab - at));
    if (tab == std::string::npos) return fields;
    at = tab + 1;
  }
}

/// Reads one of the lines that `troupe-host --describe` writes; a plugin may have written between
/// them. True for the last line, without which a plugin has ended the process, in order or not.
bool read_line(const std::string& line, wire::PluginReport& report) {
  const auto fields = split(line);
  auto& list = report.classes;
  if (line == "troupe-end") return true;
  if (fields.size() == 5 && fields[0] == "troupe-class") {
    if (const auto types = parse_number<std::uint64_t>(fields[3]))
      list.classes.push_back({fields[1], fields[2], *types, fields[4] == "1", {}, report.file, {}});
  } else if (fields.size() == 2 && fields[0] == "troupe-failure") {
    report.failure = fields[1];
  } else if (fields.size() == 2 && fields[0] == "troupe-file") {
    report.contents = parse_number<std::uint64_t>(fields[1]).value_or(report.contents);
  } else if (fields.size() == 4 && fields[0] == "troupe-method" && !list.classes.empty()) {
    list.classes.back().methods.push_back({fields[1], fields[2], fields[3]});
  }
  return false;
}

}  // namespace

void PluginCheck::Described::end(const std::string& why) {
  if (report.failure.empty()) report.failure = "[plugin] " + report.file + ": " + why;
  process->kill(SIGKILL);
}

void PluginCheck::describe(const std::string& plugin, OnDescribed handler) {
  if (stopped_)
    throw std::runtime_error("[plugin] " + plugin + ": was not looked at, this host is leaving");
  const auto number = ++last_described_;
  const auto described = std::make_shared<Described>(io_);
  described->report.file = plugin;
  cluster::ProcessOptions process;
  process.program = options_.host_program;
  process.arguments = {"--describe", plugin, "--parent", std::to_string(getpid())};
  process.on_line = [this, number](const std::string& line) {
    if (const auto found = describing_.find(number); found != describing_.end())
      found->second->whole |= read_line(line, found->second->report);
  };
  described->process = std::make_unique<cluster::Process>(
      io_, process, [this, number, handler](const cluster::ExitCause& cause) {
        auto node = describing_.extract(number);
        // The process object goes after its own handler has returned.
        boost::asio::post(io_, [gone = node.mapped()] {});
        auto report = std::move(node.mapped()->report);
        auto& failure = report.failure;
        if (failure.empty() && !cause.by_signal && cause.number == 0 && !node.mapped()->whole)
          failure = "[plugin] " + report.file +
                    ": it ended its process, with exit code 0, while it was opened";
        if (failure.empty() && (cause.by_signal || cause.number != 0))
          failure = cause.log.empty()
                        ? "[plugin] " + report.file + ": its check ended with " + cause.text()
                        : cause.log.back();
        handler(std::move(report));
      });
  describing_[number] = described;
  described->deadline.expires_after(options_.deadline);
  described->deadline.async_wait([weak = std::weak_ptr(described), deadline = options_.deadline](
                                     const boost::system::error_code& error) {
    const auto late = weak.lock();
    if (error || !late) return;
    late->end(fmt::format("was not opened within {} ms", deadline.count()));
  });
}

void PluginCheck::stop() {
  stopped_ = true;
  for (const auto& [number, described] : describing_)
    described->end("its check was ended, this host is leaving");
}

}  // namespace troupe::user
