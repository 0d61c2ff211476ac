#include "controller/hosts/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <chrono>
#include <deque>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/files.h"
#include "base/format.h"
#include "controller/hosts/affinity.h"
#include "controller/hosts/numa.h"
#include "transport/control/descriptors.h"

namespace troupe::cluster {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kReaped{2};  // after SIGKILL
constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kLongestLine = 2000;
constexpr std::size_t kDescriptors = 4;      // a pipe's two ends, a log, a pidfd
constexpr std::size_t kDescriptorsSoon = 2;  // its links, when it says hello

[[noreturn]] void fail(const std::string& program, const std::string& what, int error) {
  throw std::runtime_error("[process] " + program + ": " + what + ": " + strerror(error));
}

struct SpawnActions {
  SpawnActions() { posix_spawn_file_actions_init(&actions); }
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions); }
  posix_spawn_file_actions_t actions;
};

struct SpawnAttributes {
  SpawnAttributes() { posix_spawnattr_init(&attributes); }
  ~SpawnAttributes() { posix_spawnattr_destroy(&attributes); }
  posix_spawnattr_t attributes;
};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings)
    result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Spawned {
  pid_t pid = -1;
  bool pinned = false;
};

/// Starts the program with its output going to `output`, in a new process group and with default
/// signal handling.
Spawned spawn(const ProcessOptions& options, int output) {
  SpawnActions files;
  posix_spawn_file_actions_addopen(&files.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files.actions, output, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files.actions, output, STDERR_FILENO);
  if (options.inherited >= 0)
    posix_spawn_file_actions_adddup2(&files.actions, options.inherited, kInherited);
  posix_spawn_file_actions_addclosefrom_np(&files.actions,
                                           options.inherited >= 0 ? kInherited + 1 : kInherited);
  // Where the folder that this process is in has been deleted: MKL, in torch, ends a process that
  // is nowhere.
  std::error_code gone;
  const auto here = std::filesystem::current_path(gone);
  if (here.empty()) posix_spawn_file_actions_addchdir_np(&files.actions, "/");
  SpawnAttributes how;
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&how.attributes, &none);
  posix_spawnattr_setsigdefault(&how.attributes, &all);
  posix_spawnattr_setpgroup(&how.attributes, 0);
  posix_spawnattr_setflags(&how.attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<std::string> arguments{options.program};
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = options.environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  pid_t pid = -1;
  // A child begins with the affinity of the thread that spawns it.
  const OnCpus pinned(options.cpus);
  if (!pinned.error().empty() && options.on_line)
    options.on_line("-- it cannot be kept to CPUs " + cpu_list_text(options.cpus) + ": " +
                    pinned.error());
  const int error = posix_spawn(&pid, options.program.c_str(), &files.actions, &how.attributes,
                                pointers(arguments).data(), pointers(environment).data());
  if (error != 0) fail(options.program, "cannot be started", error);
  return {pid, !options.cpus.empty() && pinned.error().empty()};
}

}  // namespace

class Process::Impl : public std::enable_shared_from_this<Process::Impl> {
 public:
  Impl(asio::io_context& io, const ProcessOptions& options,
       std::function<void(const ExitCause&)> on_exit)
      : claim_("[process] " + options.program + ": cannot be started", kDescriptors,
               kDescriptorsSoon),
        end_(io),
        output_(io),
        on_exit_(std::move(on_exit)),
        on_line_(options.on_line) {
    if (!options.log.empty()) {
      log_ = open_log(options.log);
      if (!log_)
        fail(options.program, options.log.string() + " cannot be opened for its output", errno);
      log_bytes_ = options.log_bytes;
      // Of processes before it in the same place.
      logged_ = static_cast<std::uint64_t>(std::max<off_t>(0, lseek(log_.get(), 0, SEEK_END)));
    }
    std::array<int, 2> pipe{};
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) fail(options.program, "no pipe for its output", errno);
    output_.assign(pipe[0]);
    try {
      const auto spawned = spawn(options, pipe[1]);
      pid_ = spawned.pid;
      pinned_ = spawned.pinned;
    } catch (...) {
      close(pipe[1]);
      throw;
    }
    close(pipe[1]);
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    if (pidfd < 0) {
      const int error = errno;
      ::kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      fail(options.program, "pidfd_open", error);
    }
    end_.assign(pidfd);
  }

  void watch() {
    read_output();
    await_end();
  }

  void await_end() {
    end_.async_wait(asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (!error) self->reap();
                    });
  }

  pid_t pid() const { return pid_; }
  bool pinned() const { return pinned_; }

  void kill(int signal) {
    if (!reaped_) ::kill(pid_, signal);
  }

  void end(const std::string& why) {
    if (!reaped_ && !why.empty() && !std::exchange(end_said_, true))
      say("-- killed by the controller: " + why);
    kill(SIGKILL);
  }

  void say(const std::string& line) {
    append_to_log((line_.empty() ? "" : "\n") + line + "\n");
    if (on_line_) on_line_(line);
  }

  void abandon() {
    on_exit_ = nullptr;
    on_line_ = nullptr;
    if (!reaped_) {
      ::kill(-pid_, SIGKILL);
      // One that its driver does not let go outlives SIGKILL; whoever ends must not wait for it.
      const auto until = std::chrono::steady_clock::now() + kReaped;
      while (waitpid(pid_, nullptr, WNOHANG) == 0 && std::chrono::steady_clock::now() < until)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      reaped_ = true;
    }
    boost::system::error_code ignored;
    end_.close(ignored);
    output_.close(ignored);
  }

 private:
  void read_output() {
    output_.async_read_some(
        asio::buffer(buffer_),
        [self = shared_from_this()](const boost::system::error_code& error, std::size_t bytes) {
          if (error) return;
          self->take({self->buffer_.data(), bytes});
          if (!self->reaped_) self->read_output();
        });
  }

  void take(std::string_view text) {
    append_to_log(text);
    for (const char letter : text) {
      if (letter == '\n') {
        if (on_line_) on_line_(line_);
        lines_.push_back(std::move(line_));
        line_.clear();
        if (lines_.size() > kKeptLines) lines_.pop_front();
      } else if (line_.size() < kLongestLine) {
        line_ += letter;
      }
    }
  }

  /// Appends to the log. A full disk costs the log, not the actor; nor does an actor that says much
  /// cost the disk.
  void append_to_log(std::string_view text) {
    if (!log_) return;
    const std::uint64_t room = log_bytes_ - std::min(logged_, log_bytes_);
    write_log(text.substr(0, room));
    if (text.size() <= room) return;
    write_log(fmt::format("\n-- nothing more is written here: the log has {} bytes\n", logged_));
    log_ = FileHandle();
  }

  void write_log(std::string_view text) {
    while (log_ && !text.empty()) {
      const auto written = write(log_.get(), text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      logged_ += static_cast<std::uint64_t>(written);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

  void reap() {
    siginfo_t info{};
    // Readiness may be that of another process, whose descriptor had this number before.
    if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == 0)
      return await_end();
    // What it has started goes with it; until it is reaped its group's number is nobody else's.
    ::kill(-pid_, SIGKILL);
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) != pid_) return;
    reaped_ = true;
    // What was read before comes first: its handler may stand in the queue.
    boost::system::error_code ignored;
    output_.cancel(ignored);
    asio::post(output_.get_executor(),
               [self = shared_from_this(), status] { self->read_the_rest(status); });
  }

  /// Reads what the process wrote last, which is still in the pipe, and tells of its end.
  void read_the_rest(int status) {
    boost::system::error_code error;
    output_.non_blocking(true, error);
    while (!error) {
      const auto bytes = output_.read_some(asio::buffer(buffer_), error);
      if (!error) take({buffer_.data(), bytes});
    }
    if (!line_.empty()) take("\n");
    boost::system::error_code ignored;
    end_.close(ignored);
    output_.close(ignored);
    if (on_exit_)
      std::exchange(on_exit_, nullptr)(exit_cause(status, {lines_.begin(), lines_.end()}));
  }

  const control::DescriptorClaim claim_;
  asio::posix::stream_descriptor end_;
  asio::posix::stream_descriptor output_;
  std::function<void(const ExitCause&)> on_exit_;
  std::function<void(const std::string&)> on_line_;
  std::array<char, 4096> buffer_;
  std::deque<std::string> lines_;
  std::string line_;
  FileHandle log_;
  std::uint64_t log_bytes_ = 0;
  std::uint64_t logged_ = 0;
  pid_t pid_ = -1;
  bool pinned_ = false;
  bool reaped_ = false;
  bool end_said_ = false;
};

Process::Process(asio::io_context& io, const ProcessOptions& options,
                 std::function<void(const ExitCause&)> on_exit)
    : impl_(std::make_shared<Impl>(io, options, std::move(on_exit))) {
  impl_->watch();
}

Process::~Process() {
  impl_->abandon();
}

pid_t Process::pid() const {
  return impl_->pid();
}

bool Process::pinned() const {
  return impl_->pinned();
}

void Process::kill(int signal) {
  impl_->kill(signal);
}

void Process::end(const std::string& why) {
  impl_->end(why);
}

void Process::say(const std::string& line) {
  impl_->say(line);
}

}  // namespace troupe::cluster
