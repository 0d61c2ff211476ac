#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/follow.h"
#include "client/cli/signals.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "troupe/client.h"
#include "troupe/inspect.h"

namespace troupe::repl {

/// One console: its connections, and what came of its commands.
class Session : public cli::Connections {
 public:
  /// Throws cli::CommandError when there is no cluster.
  explicit Session(cli::Target target, bool json = false);

  /// Does what the words say. Errors go to standard error, one line each; false when one did.
  bool run(const Words& words);
  /// Prints the complaint about a line that no command could be made of.
  void complain(const std::string& what) const { complain(Error{ErrorCode::usage, what}); }

  Client& client() override { return *client_; }
  Inspector& inspector() override { return *inspector_; }
  const std::string& endpoint() const { return target_.endpoint; }
  /// True if every command prints one JSON document on one line, also for an error.
  bool json() const { return json_; }
  cli::Report report() const { return json_ ? cli::Report::json_line : cli::Report::text; }

  /// Signals (Ctrl-C and the like) while a command runs. Only inside a command.
  const cli::SignalWatch& signals() override { return *signals_; }
  /// The signal that ended the last command; 0 if none did.
  int caught() const { return caught_; }

  /// Sends what does not fit on the screen through PAGER, or less: for a person at a terminal.
  void use_pager() { pages_ = true; }

  void quit() { quits_ = true; }
  bool quits() const { return quits_; }

  /// Words for completion; empty when the cluster does not answer.
  std::vector<std::string> job_ids();
  std::vector<std::string> actor_ids();
  std::vector<std::string> user_actors();
  /// Returns the names that the last `tensors` showed of the job at the actor, both as typed;
  /// before that, the names that every job has: asking costs the actor a look at every value.
  std::vector<std::string> tensor_names(const std::string& actor, const std::string& job) const;
  void keep_tensor_names(const std::string& actor, const std::string& job,
                         std::vector<std::string> names) {
    tensor_names_[{actor, job}] = std::move(names);
  }
  /// Returns the methods of an actor's class. The actor is given by its number or name; none if
  /// there is no such actor.
  std::vector<std::string> methods(const std::string& actor);

 private:
  int carry_out(const Command& command, const Words& arguments);
  void complain(const Error& error) const;
  void reconnect_if_lost(ErrorCode code);

  cli::Target target_;
  bool json_;
  std::optional<Client> client_;
  std::optional<Inspector> inspector_;
  std::unique_ptr<cli::SignalWatch> signals_;
  int caught_ = 0;
  bool quits_ = false;
  bool pages_ = false;
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> tensor_names_;
};

/// Numbers as typed. Throw cli::UsageError naming what they should be.
std::uint64_t job_of(const std::string& word);
std::uint32_t actor_of(const std::string& word);
double seconds_of(const std::string& word);

}  // namespace troupe::repl
