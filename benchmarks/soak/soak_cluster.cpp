#include "benchmarks/soak/soak_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>
#include <thread>

#include "tests/support/free_ports.h"

namespace troupe::soak {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr auto kPatience = 60s;

}  // namespace

Child::Child(std::vector<std::string> words, const std::string& output) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  std::vector<char*> pointers;
  for (auto& word : words)
    pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const int error =
      posix_spawn(&pid_, words.at(0).c_str(), &files, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) throw std::runtime_error("[soak] " + words[0] + ": " + std::strerror(error));
}

Child::~Child() {
  if (ended_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Child::signal(int number) const {
  if (!ended_) kill(pid_, number);
}

bool Child::ended(std::chrono::milliseconds deadline) {
  const auto end = Clock::now() + deadline;
  while (!ended_) {
    ended_ = waitpid(pid_, nullptr, WNOHANG) == pid_;
    if (ended_ || Clock::now() > end) break;
    std::this_thread::sleep_for(2ms);
  }
  return ended_;
}

Held held(pid_t pid) {
  const auto process = "/proc/" + std::to_string(pid);
  std::ifstream pages(process + "/statm");
  double whole = 0, resident = 0;
  pages >> whole >> resident;
  std::error_code gone;
  const fs::directory_iterator entries(process + "/fd", gone);
  return {resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20),
          gone ? 0 : static_cast<int>(std::distance(begin(entries), end(entries)))};
}

int shared_memory_names() {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const auto name = entry.path().filename().string();
    count += name.find("torch") != std::string::npos || name.find("troupe") != std::string::npos;
  }
  return count;
}

SoakCluster::SoakCluster(SoakClusterOptions options) : options_(std::move(options)) {
  auto name = (fs::temp_directory_path() / "troupe-soak-XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("[soak] no folder in " + name);
  folder_ = name;
  endpoint_ = testing::endpoint_to_come_back_to();
  start_controller();
  start_guest();
}

SoakCluster::~SoakCluster() {
  guest_->signal(SIGINT);
  guest_->ended(kPatience);
  controller_->signal(SIGTERM);
  controller_->ended(kPatience);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void SoakCluster::start_controller(bool salvage) {
  std::vector<std::string> words;
  if (options_.descriptors > 0)
    words = {"/bin/sh", "-c",
             "ulimit -n " + std::to_string(options_.descriptors) + "; exec \"$0\" \"$@\""};
  words.insert(words.end(),
               {program(), "start", "--actors", std::to_string(options_.actors), "--listen",
                endpoint_, "--model", options_.model, "--journal", folder_ / "journal",
                "--recoveries", "20", "--plugin", options_.plugin});
  if (salvage) words.push_back("--journal-salvage");
  controller_ = std::make_unique<Child>(words, folder_ / "controller.log");
  controller_pid_ = controller_->pid();
}

void SoakCluster::start_guest() {
  guest_ = std::make_unique<Child>(
      std::vector<std::string>{program(), "join", "--connect", endpoint_, "--actors", "1", "--name",
                               "guest", "--wait", "600", "--plugin", options_.plugin},
      folder_ / "guest.log");
}

void SoakCluster::kill_controller() {
  controller_->signal(SIGKILL);
  controller_->ended(kPatience);
}

void SoakCluster::restart_controller() {
  kill_controller();
  start_controller();
}

bool SoakCluster::restart_damaged(unsigned seed) {
  kill_controller();
  std::mt19937 random(seed);
  constexpr std::array kFiles{"journal.db-wal", "journal.db-wal", "journal.db", "acknowledged"};
  const auto path = folder_ / "journal" / kFiles[random() % kFiles.size()];
  if (const auto size = fs::file_size(path); size > 0) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(random() % size);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get() ^ (1 << random() % 8));
    file.seekp(at).put(byte);
  }
  start_controller();
  for (const auto end = Clock::now() + kPatience; !controller_->ended(20ms);) {
    if (Client::connect(endpoint_, 1s)) return false;
    if (Clock::now() > end)
      throw std::runtime_error("[soak] no controller on a damaged journal, and no word of it");
  }
  start_controller(/*salvage=*/true);
  return true;
}

void SoakCluster::restart_guest(bool orderly) {
  guest_->signal(orderly ? SIGINT : SIGKILL);
  if (!guest_->ended(2 * kPatience)) throw std::runtime_error("[soak] the guest does not leave");
  start_guest();
  // Until the controller has noticed that the old guest is gone, it refuses another one of its
  // name.
  const auto end = Clock::now() + kPatience;
  while (guest_->ended(2s) && Clock::now() < end)
    start_guest();
}

Client SoakCluster::connect() const {
  for (const auto end = Clock::now() + kPatience;; std::this_thread::sleep_for(50ms)) {
    auto client = Client::connect(endpoint_);
    if (client) return std::move(client.value());
    if (Clock::now() > end)
      throw std::runtime_error("[soak] no controller: " + client.error().what);
  }
}

bool SoakCluster::whole() const {
  auto client = connect();
  for (const auto end = Clock::now() + 3 * kPatience; Clock::now() < end;
       std::this_thread::sleep_for(50ms)) {
    const auto status = client.status();
    if (!status) {
      client = connect();
      continue;
    }
    const auto& now = status.value();
    const auto ready = std::count_if(now.actors.begin(), now.actors.end(), [](const auto& actor) {
      return actor.state == ActorState::ready;
    });
    if (ready >= places() && now.jobs_queued == 0 && now.jobs_running == 0) return true;
  }
  return false;
}

}  // namespace troupe::soak
