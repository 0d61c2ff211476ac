#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "client/cli/verb.h"
#include "client/repl/words.h"

namespace troupe::repl {

class Session;

/// Returns the name of a job in what is printed.
inline std::string name_of(std::uint64_t job) {
  return fmt::format("job {}", job);
}

/// Kind of a command's argument, for completion.
enum class Argument {
  job,
  job_or_all,
  all,
  not_finite,
  actor,
  speaker,
  fault,
  seconds,
  hold_phase,
  command,
  tensor,
  user_actor,
  method,
  output_option,
  latents_file,
  picture_file,
  trace_file
};

/// A command of `troupe`, of the console, or of both.
struct Command {
  std::string name;
  std::string arguments = {};            // "ACTOR JOB NAME [SLICE]"
  std::string summary;                   // one line
  std::string details = {};              // for `help NAME`; may be empty
  std::vector<Argument> completes = {};  // by position
  std::size_t least = 0;                 // arguments
  std::size_t most = 0;
  /// `words` without the command's name. Prints to standard output; throws what went wrong.
  std::function<void(Session&, const Words& words)> run = {};
  std::unique_ptr<cli::Verb> (*verb)(cli::Options&) = nullptr;  // of the shell alone
  /// Command with options, of the shell and of the console: there, too, its options are the verb's,
  /// and `least` and `most` do not count.
  std::unique_ptr<cli::SharedVerb> (*shared)(cli::Options&, cli::Where) = nullptr;
  bool console_alone = false;             // `shared` is no verb of the shell
  std::vector<std::string> aliases = {};  // in the console

  bool in_shell() const { return verb != nullptr || (shared != nullptr && !console_alone); }
  bool in_console() const { return run || shared != nullptr; }
};

/// Returns the one table of commands: those of the shell in the order in which `troupe --help`
/// lists them, those of the console as its `help` does.
const std::vector<Command>& command_table();
/// Returns the names of the faults that `inject` can cause.
std::vector<std::string> fault_names();
/// Returns the console's commands of the table.
const std::vector<Command>& all_commands();
/// Returns a command of the console by its name, null when there is no such command.
const Command* find_command(const std::string& name);

// What the commands of the console alone do.
void nodes(Session& session, const Words& words);
void actors(Session& session, const Words& words);
void groups(Session& session, const Words& words);
void queue(Session& session, const Words& words);
void failures(Session& session, const Words& words);
void graph(Session& session, const Words& words);
void pause(Session& session, const Words& words);
void step(Session& session, const Words& words);
void until(Session& session, const Words& words);
void resume(Session& session, const Words& words);
void dump(Session& session, const Words& words);
void preview(Session& session, const Words& words);
void mailbox(Session& session, const Words& words);
void tensors(Session& session, const Words& words);
void slice(Session& session, const Words& words);
void inject(Session& session, const Words& words);
void classes(Session& session, const Words& words);
void user_actors(Session& session, const Words& words);
void call(Session& session, const Words& words);
void help(Session& session, const Words& words);
void quit(Session& session, const Words& words);

}  // namespace troupe::repl
