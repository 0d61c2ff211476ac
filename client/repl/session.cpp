#include "client/repl/session.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>

#include "base/numbers.h"
#include "base/suggest.h"
#include "client/cli/cluster_view.h"
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "troupe/actor.h"

namespace troupe::repl {
namespace {

using cli::take;
using cli::UsageError;

void check_count(const Command& command, std::size_t arguments) {
  if (arguments >= command.least && arguments <= command.most) return;
  throw UsageError(command.name + " takes " +
                   (command.arguments.empty() ? "no argument" : command.arguments));
}

/// A command's output, kept until its end.
class KeptOutput {
 public:
  KeptOutput() : before_(std::cout.rdbuf(kept_.rdbuf())) {}
  ~KeptOutput() { std::cout.rdbuf(before_); }
  KeptOutput(const KeptOutput&) = delete;
  KeptOutput& operator=(const KeptOutput&) = delete;
  std::string text() const { return kept_.str(); }

 private:
  std::ostringstream kept_;
  std::streambuf* before_;
};

/// True where a pager has shown it.
bool shown_by_pager(const std::string& text) {
  const char* chosen = std::getenv("PAGER");
  FILE* pager = popen(chosen && *chosen ? chosen : "less -FRX 2>/dev/null", "w");
  if (pager == nullptr) return false;
  // Who leaves a pager early closes its pipe.
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  std::fwrite(text.data(), 1, text.size(), pager);
  const int status = pclose(pager);
  std::signal(SIGPIPE, before);
  constexpr int kNoSuchProgram = 127;
  return !(WIFEXITED(status) && WEXITSTATUS(status) == kNoSuchProgram);
}

/// Does `work`, and shows what it prints in a pager where the screen does not hold it.
void paged(const std::function<void()>& work) {
  std::string text;
  std::exception_ptr failure;
  {
    const KeptOutput kept;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    text = kept.text();
  }
  const auto rows = cli::terminal_rows(STDOUT_FILENO);
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  if (rows == 0 || lines < rows || !shown_by_pager(text)) std::cout << text;
  if (failure) std::rethrow_exception(failure);
}

const Command& named(const std::string& word) {
  if (const Command* command = find_command(word)) return *command;
  std::vector<std::string> known;
  for (const Command& command : all_commands())
    known.push_back(command.name);
  const std::string guess = did_you_mean(word, known);
  throw UsageError("unknown command " + word + (guess.empty() ? "; `help` lists them" : guess));
}

std::string option_free(const std::string& word, const char* what) {
  if (word.empty()) throw UsageError(std::string(what) + " is missing");
  return word;
}

}  // namespace

Session::Session(cli::Target target, bool json) : target_(std::move(target)), json_(json) {
  client_ = cli::connect(target_);
  inspector_ = cli::connect_inspector(target_);
}

void Session::complain(const Error& error) const {
  if (json_) cli::print_json_line({{"error", cli::to_json(error)}});
  std::cout << std::flush;
  cli::say(cli::in_options(cli::one_line(error.what)));
}

/// Does what the words behind the command's name say, and returns its exit code.
int Session::carry_out(const Command& command, const Words& arguments) {
  int code = cli::kOk;
  if (!command.shared) {
    check_count(command, arguments.size());
    const auto work = [&] { command.run(*this, arguments); };
    pages_ ? paged(work) : work();
    return code;
  }
  cli::Options options(command.summary, command.name);
  const auto verb = command.shared(options, cli::Where::console);
  const bool helps = options.parse(arguments) == cli::Options::Parsed::help;
  if (const auto why = options.complaint(options.remaining()); !helps && !why.empty())
    throw UsageError(why);
  const auto work = [&] {
    if (!helps)
      code = verb->run_in_console(*this, json_);
    else if (json_)
      cli::print_json_line({{"help", options.help()}});
    else
      std::cout << options.help();
  };
  pages_ && (helps || !verb->shows_progress()) ? paged(work) : work();
  return code;
}

bool Session::run(const Words& words) {
  caught_ = 0;
  std::string name;
  try {
    const Command& command = named(words.front());
    name = command.name;
    signals_ = std::make_unique<cli::SignalWatch>();
    const int code = carry_out(command, {words.begin() + 1, words.end()});
    caught_ = signals_->caught();
    signals_.reset();
    std::cout << std::flush;
    if (std::cout.good()) return caught_ == 0 && code == cli::kOk;
    quit();  // whoever runs the console's verb says why
  } catch (const cli::CommandError& error) {
    if (signals_) caught_ = signals_->caught();
    complain(Error{error.error.code, error.what(), error.error.field});
    reconnect_if_lost(error.error.code);
  } catch (const UsageError& error) {
    if (signals_) caught_ = signals_->caught();
    complain(error.what() + (name.empty() ? "" : " (see help " + name + ")"));
  } catch (const std::exception& error) {
    if (signals_) caught_ = signals_->caught();
    complain(Error{ErrorCode::failed, error.what()});
  }
  signals_.reset();
  return false;
}

/// The command is not tried again: it may have been carried out. What was lost may as well be an
/// actor: then the controller still answers.
void Session::reconnect_if_lost(ErrorCode code) {
  if (code != ErrorCode::lost) return;
  const auto gone = [](const auto& answer) {
    return !answer && answer.error().code == ErrorCode::lost;
  };
  if (!gone(client_->jobs({.most = 1})) && !gone(inspector_->logs(-1, 0, 1))) return;
  constexpr std::chrono::seconds kSoon{1};
  const std::stop_token stop = signals_ ? signals_->token() : std::stop_token();
  auto client = Client::connect(target_.endpoint, kSoon, target_.keys, stop);
  auto inspector = Inspector::connect(target_.endpoint, kSoon, target_.keys, stop);
  if (!client || !inspector) return;
  client_ = std::move(client.value());
  inspector_ = std::move(inspector.value());
  cli::say("connected again to " + target_.endpoint);
}

std::vector<std::string> Session::job_ids() {
  std::vector<std::string> ids;
  if (const auto page = client_->jobs({.most = cli::kShownRows})) {
    for (const JobInfo& job : page.value().jobs)
      ids.push_back(std::to_string(job.id));
  }
  return ids;
}

std::vector<std::string> Session::actor_ids() {
  std::vector<std::string> ids;
  if (const auto status = client_->status()) {
    for (const ActorInfo& actor : status.value().actors)
      ids.push_back(std::to_string(actor.id));
  }
  return ids;
}

std::vector<std::string> Session::user_actors() {
  std::vector<std::string> words;
  if (const auto actors = client_->actors().list()) {
    for (const auto& actor : actors.value()) {
      words.push_back(std::to_string(actor.id));
      if (!actor.name.empty()) words.push_back(actor.name);
    }
  }
  return words;
}

std::vector<std::string> Session::tensor_names(const std::string& actor,
                                               const std::string& job) const {
  const auto seen = tensor_names_.find({actor, job});
  return seen == tensor_names_.end() ? std::vector<std::string>{"latents", "caption"}
                                     : seen->second;
}

std::vector<std::string> Session::methods(const std::string& actor) {
  std::vector<std::string> words;
  const auto actors = client_->actors().list();
  const auto classes = client_->actors().classes();
  if (!actors || !classes) return words;
  const auto number = parse_number<std::uint64_t>(actor);
  const auto called = std::ranges::find_if(actors.value(), [&](const UserActorInfo& one) {
    return number ? one.id == *number : one.name == actor;
  });
  if (called == actors.value().end()) return words;
  for (const auto& one : classes.value()) {
    if (one.name != called->class_name) continue;
    for (const auto& method : one.methods)
      words.push_back(method.name);
  }
  return words;
}

std::uint64_t job_of(const std::string& word) {
  const auto job = parse_number<std::uint64_t>(word);
  if (!job)
    throw UsageError("job \"" + option_free(word, "job") + "\": a number, as `jobs` shows it");
  return *job;
}

std::uint32_t actor_of(const std::string& word) {
  const auto actor = parse_number<std::uint32_t>(word);
  if (!actor)
    throw UsageError("actor \"" + option_free(word, "actor") +
                     "\": a number, as `actors` shows it");
  return *actor;
}

double seconds_of(const std::string& word) {
  const auto seconds = parse_number<double>(word);
  if (!seconds || !std::isfinite(*seconds) || *seconds < 0 || *seconds > 3600)
    throw UsageError("\"" + word + "\": seconds, a number from 0 to 3600");
  return *seconds;
}

}  // namespace troupe::repl
