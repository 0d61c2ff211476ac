#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/format.h"
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

struct Command {
  std::string name;
  std::string arguments;            // "ACTOR JOB NAME [SLICE]"
  std::string summary;              // one line
  std::string details;              // for `help NAME`; may be empty
  std::vector<Argument> completes;  // by position
  std::size_t least = 0;            // arguments
  std::size_t most = 0;
  /// `words` without the command's name. Prints to standard output; throws what went wrong.
  std::function<void(Session&, const Words& words)> run;
  bool has_options = false;  // the command parses its words itself; `least` and `most` do not count
};

std::vector<Command> cluster_commands();
std::vector<Command> job_commands();
std::vector<Command> inside_commands();
std::vector<Command> actor_commands();
/// Returns the names of the faults that `inject` can cause.
std::vector<std::string> fault_names();
std::vector<Command> user_commands();
/// Returns all commands with help and quit, in the order in which help lists them.
const std::vector<Command>& all_commands();
/// Returns a command by its name, null when there is no such command.
const Command* find_command(const std::string& name);

}  // namespace troupe::repl
