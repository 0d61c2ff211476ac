#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/cli/follow.h"
#include "client/cli/options.h"
#include "client/own_cluster.h"
#include "troupe/client.h"
#include "troupe/inspect.h"

namespace troupe::cli {

/// A controller as the command line names it.
struct Target {
  std::string endpoint;  // as typed; see checked_endpoint
  std::string keys;      // folder; empty = none
};

/// `--connect ENDPOINT`, else TROUPE_ADDRESS, else the default; and `--keys DIR`, else TROUPE_KEYS.
void add_connect_option(Options& app, Target& target);
/// `--keys DIR`, else TROUPE_KEYS, alone.
void add_keys_option(Options& app, std::string& keys, const std::string& help);

class SignalWatch;

/// Connects. Throws UsageError if the target is no endpoint, CommandError if no controller lets us
/// in. `signals`: those that are caught here and end the attempt; without them a signal ends the
/// process.
Client connect(const Target& target);
Client connect(const Target& target, const SignalWatch& signals);
Inspector connect_inspector(const Target& target);

/// Returns client::full_endpoint of `text`. Throws UsageError, which names `option`, if it is no
/// endpoint.
std::string checked_endpoint(const std::string& text, const std::string& option = "--connect");

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

/// Returns a controller's text with options in place of the fields that it names in backquotes.
std::string in_options(const std::string& text);

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

/// Place where a command runs.
enum class Where { shell, console };

/// One subcommand of `troupe`. Its options are members; run() is called when it was chosen.
class Verb {
 public:
  virtual ~Verb() = default;
  /// Throws UsageError where options contradict each other. Called before run(), and again with
  /// fewer of the user's defaults where it throws; touches nothing outside.
  virtual void check() {}
  /// Runs the verb, prints the result to standard output and returns the exit code. Throws
  /// UsageError, CommandError or any std::exception (exit code 1).
  virtual int run() = 0;

  Options& app() const { return *app_; }
  bool json() const { return json_; }
  /// Describes what goes on when the verb has ended, and how it is reached: printed where the
  /// result could not be printed. Empty if nothing goes on.
  const std::string& goes_on() const { return goes_on_; }

 protected:
  /// Adds --json, but not in the console, which says so itself.
  explicit Verb(Options& options, Where where = Where::shell);
  /// Makes a verb without --json; `why` is for whoever gives it.
  Verb(Options& options, const std::string& why);
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

/// The cluster as a command reaches it: a verb over connections of its own, a command of the
/// console over the console's.
class Connections {
 public:
  virtual ~Connections() = default;
  virtual Client& client() = 0;
  virtual Inspector& inspector() = 0;
  /// Returns the signals that come while the command runs. Asked for first, it also ends the
  /// attempt to connect.
  virtual const SignalWatch& signals() = 0;
};

/// A verb that is a command of the console, too.
class SharedVerb : public Verb {
 public:
  int run() final;
  /// Does the same in the console; with `json` documents take one line.
  int run_in_console(Connections& at, bool json);
  /// Returns whether it prints while it runs, so that nothing of that may be kept back. After its
  /// options are parsed.
  virtual bool shows_progress() const { return false; }

 protected:
  SharedVerb(Options& options, Where where) : Verb(options, where), where_(where) {}
  virtual int run_on(Connections& at) = 0;
  /// Adds --connect and --keys in the shell.
  void add_connect();
  /// Throws UsageError if --connect is no endpoint.
  void check_target() const;
  bool in_console() const { return where_ == Where::console; }
  Report report() const;
  void print(const nlohmann::json& document) const;

 private:
  Where where_;
  Target target_;
};

/// Makes all verbs, each with its options in `program`.
std::vector<std::unique_ptr<Verb>> make_verbs(Options& program);

std::unique_ptr<Verb> make_run(Options& options);
std::unique_ptr<Verb> make_start(Options& options);
std::unique_ptr<Verb> make_join(Options& options);
std::unique_ptr<Verb> make_serve(Options& options);
std::unique_ptr<Verb> make_status(Options& options);
std::unique_ptr<Verb> make_top(Options& options);
std::unique_ptr<SharedVerb> make_submit(Options& options, Where where);
std::unique_ptr<Verb> make_wait(Options& options);
std::unique_ptr<SharedVerb> make_follow(Options& options, Where where);
std::unique_ptr<SharedVerb> make_jobs(Options& options, Where where);
std::unique_ptr<SharedVerb> make_cancel(Options& options, Where where);
std::unique_ptr<Verb> make_drain(Options& options);
std::unique_ptr<Verb> make_stop(Options& options);
std::unique_ptr<Verb> make_repl(Options& options);
std::unique_ptr<SharedVerb> make_logs(Options& options, Where where);
std::unique_ptr<SharedVerb> make_timeline(Options& options, Where where);
std::unique_ptr<Verb> make_plan(Options& options);
std::unique_ptr<Verb> make_inspect(Options& options);
std::unique_ptr<Verb> make_models(Options& options);
std::unique_ptr<Verb> make_keys(Options& options);
std::unique_ptr<Verb> make_completion(Options& options);
std::unique_ptr<Verb> make_man(Options& options);

}  // namespace troupe::cli
