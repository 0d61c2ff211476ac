#pragma once
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/cli/options.h"
#include "troupe/client.h"

namespace troupe::cli {

inline constexpr int kOk = 0;
inline constexpr int kFailed = 1;
inline constexpr int kUsage = 2;

/// Thrown when a command did not work: exit code 1, or 128 + signal after a signal.
struct CommandError : std::runtime_error {
  explicit CommandError(Error why, int exit = kFailed)
      : std::runtime_error(why.message()), error(std::move(why)), exit_code(exit) {}
  Error error;
  int exit_code;
};

/// Returns the value, or throws CommandError.
template <class T>
T take(Result<T> result) {
  if (!result) throw CommandError(result.error());
  return std::move(result.value());
}

/// Returns what `read` makes of the file or folder of an option; an error of `read` names the
/// option.
template <class Read>
auto naming(const std::string& option, Read&& read) {
  try {
    return read();
  } catch (const UsageError&) {
    throw;
  } catch (const CommandError& error) {
    throw CommandError(Error{error.error.code, option + " " + one_line(error.error.what)},
                       error.exit_code);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error(option + " " + one_line(error.what()));
  }
}

/// One subcommand of `troupe`. Its options are members; run() is called when it was chosen.
class Verb {
 public:
  virtual ~Verb() = default;
  /// Runs the verb, prints the result to standard output and returns the exit code. Throws
  /// UsageError, CommandError or any std::exception (exit code 1).
  virtual int run() = 0;

  Options& app() { return *app_; }
  bool json() const { return json_; }
  /// Describes what goes on when the verb has ended, and how it is reached: printed where the
  /// result could not be printed. Empty if nothing goes on.
  const std::string& goes_on() const { return goes_on_; }

 protected:
  Verb(Options& parent, const std::string& name, const std::string& description);
  /// Sets the text below the options in --help: what to know, what to type, and the page of docs/.
  void set_footer(const std::string& text, const std::vector<std::string>& examples,
                  const std::string& page);
  Options* app_;
  bool json_ = false;
  std::string goes_on_;
};

/// Returns the number of a job as typed. Throws UsageError naming `verb` when missing, and unless a
/// number.
std::uint64_t checked_job_id(const std::string& verb, const std::string& text);

std::vector<std::unique_ptr<Verb>> make_verbs(Options& parent);

std::unique_ptr<Verb> make_run(Options& parent);
std::unique_ptr<Verb> make_start(Options& parent);
std::unique_ptr<Verb> make_join(Options& parent);
std::unique_ptr<Verb> make_drain(Options& parent);
std::unique_ptr<Verb> make_status(Options& parent);
std::unique_ptr<Verb> make_submit(Options& parent);
std::unique_ptr<Verb> make_wait(Options& parent);
std::unique_ptr<Verb> make_jobs(Options& parent);
std::unique_ptr<Verb> make_cancel(Options& parent);
std::unique_ptr<Verb> make_stop(Options& parent);
std::unique_ptr<Verb> make_plan(Options& parent);
std::unique_ptr<Verb> make_inspect(Options& parent);
std::unique_ptr<Verb> make_repl(Options& parent);
std::unique_ptr<Verb> make_timeline(Options& parent);
std::unique_ptr<Verb> make_logs(Options& parent);
std::unique_ptr<Verb> make_keys(Options& parent);
std::unique_ptr<Verb> make_serve(Options& parent);
std::unique_ptr<Verb> make_top(Options& parent);
std::unique_ptr<Verb> make_completion(Options& parent);
std::unique_ptr<Verb> make_man(Options& parent);

}  // namespace troupe::cli
