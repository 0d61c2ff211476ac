#include "tests/process/support/processes.h"

#include "tests/support/text.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

struct ProcessFacts {
  std::string name;
  char state = 'X';
  pid_t parent = 0;
};

/// Source: proc(5), stat: the name stands in parentheses and may hold anything.
ProcessFacts facts_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const auto open = line.find('(');
  const auto close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  ProcessFacts facts{.name = line.substr(open + 1, close - open - 1)};
  std::istringstream rest(line.substr(close + 1));
  rest >> facts.state >> facts.parent;
  return facts;
}

bool lives(const ProcessFacts& facts) {
  return facts.state != 'Z' && facts.state != 'X';
}

/// Returns the living children of `parent`, of that name alone where one is given.
std::vector<pid_t> children_called(pid_t parent, const std::string& program) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (!std::all_of(name.begin(), name.end(), ::isdigit)) continue;
    const auto pid = static_cast<pid_t>(std::stol(name));
    const auto facts = facts_of(pid);
    if (facts.parent == parent && (program.empty() || facts.name == program) && lives(facts))
      found.push_back(pid);
  }
  return found;
}

/// Returns the process that made a shared memory, by LibTorch's name for it: torch_PID_….
pid_t maker_of(const std::string& name) {
  const auto at = name.find("torch_");
  return at == std::string::npos ? 0 : static_cast<pid_t>(std::atoi(name.c_str() + at + 6));
}

std::vector<std::string> memory_names() {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    // Of a process it is a file; folders are those of tests that run beside this one.
    std::error_code gone;
    if (!entry.is_regular_file(gone)) continue;
    const std::string name = entry.path().filename().string();
    const bool torch = name.find("torch") != std::string::npos;
    // What belongs to a living process is in use, here or in somebody else's program.
    if (torch && is_alive(maker_of(name))) continue;
    if (torch || name.find("troupe") != std::string::npos) found.push_back(name);
  }
  return found;
}

// What others left before this program began is no fault of what it tests.
const auto kMemoryBefore = [] {
  const auto names = memory_names();
  return std::set<std::string>(names.begin(), names.end());
}();

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (auto& text : strings)
    result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::vector<pid_t> children_of(pid_t parent) {
  return children_called(parent, "");
}

std::vector<pid_t> actors_of(pid_t parent) {
  return children_called(parent, "troupe-actor");
}

bool is_alive(pid_t pid) {
  return lives(facts_of(pid));
}

double status_bytes(std::uint32_t pid, const std::string& field) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

bool gone(const std::vector<pid_t>& pids) {
  return eventually(kPatience, [&] { return std::none_of(pids.begin(), pids.end(), is_alive); });
}

std::vector<std::string> shared_memory() {
  auto found = memory_names();
  std::erase_if(found, [](const std::string& name) { return kMemoryBefore.contains(name); });
  return found;
}

std::string left_in_memory() {
  std::string names;
  for (const auto& name : shared_memory())
    names += (names.empty() ? "" : ", ") + name;
  return names;
}

Command::Command(const std::vector<std::string>& arguments, const std::string& folder,
                 const std::vector<std::string>& environment, const std::string& program) {
  static std::atomic<int> count = 0;
  name_ = folder + "/command-" + std::to_string(++count);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const auto redirect = [&](int to, const std::string& path, int flags) {
    posix_spawn_file_actions_addopen(&files, to, path.c_str(), flags, 0600);
  };
  const std::string out = name_ + ".out";
  const std::string err = name_ + ".err";
  redirect(STDIN_FILENO, "/dev/null", O_RDONLY);
  redirect(STDOUT_FILENO, out, O_WRONLY | O_CREAT | O_TRUNC);
  redirect(STDERR_FILENO, err, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<std::string> words{"troupe"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** entry = environ; *entry != nullptr; ++entry)
    variables.emplace_back(*entry);
  const int error = posix_spawn(&pid_, program.c_str(), &files, nullptr, pointers(words).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error(std::string("[tests] troupe: ") + std::strerror(error));
}

Command::~Command() {
  if (exit_code_ >= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Command::signal(int number) const {
  if (exit_code_ < 0) kill(pid_, number);
}

int Command::wait(std::chrono::milliseconds deadline) {
  int status = 0;
  if (exit_code_ < 0 && eventually(deadline, [&] { return waitpid(pid_, &status, WNOHANG) != 0; }))
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string Command::out() const {
  return read_all(name_ + ".out");
}

std::string Command::err() const {
  return read_all(name_ + ".err");
}

}  // namespace troupe::testing
