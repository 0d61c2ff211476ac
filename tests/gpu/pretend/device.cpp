#include "tests/gpu/pretend/device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pretend {

using namespace std::chrono_literals;

namespace {

/// Time for which nothing may move before this process tells the others who waits for whom, and
/// before a thread that waits for the device looks whether that is a cycle.
constexpr auto kSettled = 30ms;
std::chrono::milliseconds patience() {
  static const auto value = std::chrono::milliseconds(setting("TROUPE_PRETEND_PATIENCE_MS", 3000));
  return value;
}

bool passed(const Mark& mark) {
  return !mark.stream || mark.stream->completed >= mark.count;
}

void put(char (&to)[Board::kText], const std::string& text) {
  std::snprintf(to, sizeof to, "%s", text.c_str());
}

/// Reads the board of another process; nothing where it cannot be read.
std::optional<Board> read_board(int process, int descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  Board copy{};
  for (int turn = 0; turn < 20; ++turn) {
    const bool whole = ::pread(file, static_cast<void*>(&copy), sizeof copy, 0) == sizeof copy;
    if (whole && copy.version % 2 == 0) {
      ::close(file);
      return copy;
    }
    std::this_thread::sleep_for(1ms);
  }
  ::close(file);
  return std::nullopt;
}

}  // namespace

pid_t thread_id() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

std::int64_t setting(const char* name, std::int64_t otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? std::strtoll(value, nullptr, 10) : otherwise;
}

std::uint64_t drawn(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  static const auto seed = static_cast<std::uint64_t>(setting("TROUPE_PRETEND_SEED", 1));
  std::uint64_t value = seed;
  for (const std::uint64_t part : {a, b, c}) {
    value += part + 0x9e3779b97f4a7c15U;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
    value ^= value >> 31;
  }
  return value;
}

void fault(const std::string& text) {
  const std::string line =
      "[pretend gpu] process " + std::to_string(::getpid()) + ": " + text + "\n";
  if (::write(2, line.data(), line.size()) < 0) {
  }
  if (const char* path = std::getenv("TROUPE_PRETEND_REPORT")) {
    const int file = ::open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file >= 0 && ::write(file, line.data(), line.size()) >= 0) ::close(file);
  }
  const char* faults = std::getenv("TROUPE_PRETEND_FAULTS");
  if (!faults || std::strcmp(faults, "report") != 0) ::_exit(86);
}

bool has_context(int device) {
  Machine& machine = Machine::get();
  std::lock_guard lock(machine.mutex());
  return machine.has(device);
}

int board_descriptor() {
  return Machine::get().board_descriptor;
}

void progress() {
  Machine& machine = Machine::get();
  std::lock_guard lock(machine.mutex());
  machine.moved();
}

void Machine::moved() {
  for (auto& [index, device] : devices_)
    ++device->moved_;
}

Machine::Machine() : count_(static_cast<int>(setting("TROUPE_PRETEND_GPUS", 1))) {
  board_descriptor = ::memfd_create("troupe pretend board", MFD_CLOEXEC);
  if (board_descriptor < 0 || ::ftruncate(board_descriptor, sizeof(Board)) != 0) std::abort();
  board = static_cast<Board*>(
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, board_descriptor, 0));
  if (board == MAP_FAILED) std::abort();
}

Machine& Machine::get() {
  static Machine* machine = [] {
    auto* made = new Machine;  // outlives every static that may still ask
    std::atexit([] {
      // Commands call into libraries whose statics go next.
      std::vector<std::thread> threads;
      {
        std::lock_guard lock(get().mutex());
        get().stopping = true;
        for (auto& [index, device] : get().devices_)
          threads.push_back(std::move(device->thread_));
      }
      get().changed().notify_all();
      for (std::thread& thread : threads)
        thread.join();
    });
    return made;
  }();
  return *machine;
}

Device& Machine::device(int index) {
  auto& device = devices_[index];
  if (!device) device = std::make_unique<Device>(index);
  return *device;
}

Device* Machine::device_of(const void* data) {
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  for (auto& [index, device] : devices_) {
    auto next = device->allocations.upper_bound(at);
    if (next == device->allocations.begin()) continue;
    --next;
    if (at < next->first + next->second) return device.get();
  }
  return nullptr;
}

Device::Device(int index)
    : index_(index),
      hardware_(static_cast<std::size_t>(
          std::clamp<std::int64_t>(setting("CUDA_DEVICE_MAX_CONNECTIONS", 8), 1, 32))),
      free_blocks_(static_cast<int>(setting("TROUPE_PRETEND_BLOCKS", 132))) {
  legacy_ = make_stream(true);
  thread_ = std::thread([this] { work(); });
}

Stream* Device::make_stream(bool blocking) {
  auto* stream = new Stream;
  stream->device = this;
  stream->number = Machine::get().streams++;
  stream->blocking = blocking;
  stream->queue = streams_.size() % hardware_.size();
  streams_.push_back(stream);
  return stream;
}

/// The legacy stream and those that are not made "non-blocking" wait for each other.
void Device::order(Stream& stream, std::vector<Mark>& after) {
  for (Stream* other : streams_) {
    const bool meets = &stream == legacy_ ? other->blocking : stream.blocking && other == legacy_;
    if (!meets || other == &stream) continue;
    after.push_back({other, other->issued});
    stream.clock.join(other->clock);
  }
}

std::optional<std::string> Device::queue(Stream& stream, Command command, std::vector<Mark> after) {
  Machine& machine = Machine::get();
  auto step = std::make_shared<Step>();
  order(stream, after);
  step->after = std::move(after);
  step->count = ++stream.issued;
  step->turn = turns_++;
  stream.clock.join(machine.host);
  stream.clock.reach(stream.number, step->count);
  auto race =
      machine.accesses.note(command.ranges, command.name, stream.number, step->count, stream.clock);
  command.ranges.clear();
  step->command = std::move(command);
  // Most begin as soon as they may; some late, so that the host and other streams get ahead.
  static const std::int64_t lateness = setting("TROUPE_PRETEND_LATENESS_US", 400);
  const std::uint64_t chance = drawn(stream.number, step->count, 1);
  const std::int64_t micros = chance % 8 < 5    ? 0
                              : chance % 8 == 7 ? static_cast<std::int64_t>(chance >> 8) % 1000
                                                : static_cast<std::int64_t>(chance >> 8) % 100;
  step->not_before = SteadyClock::now() + std::chrono::microseconds(micros * lateness / 1000);
  hardware_[stream.queue].insert(step->turn);
  stream.steps.push_back(std::move(step));
  machine.changed().notify_all();
  return race;
}

bool Device::idle() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream* stream) { return stream->steps.empty(); });
}

Clock Device::everything() const {
  Clock all;
  for (const Stream* stream : streams_)
    all.join(stream->clock);
  return all;
}

std::vector<Mark> Device::marks() const {
  std::vector<Mark> all;
  for (Stream* stream : streams_)
    all.push_back({stream, stream->issued});
  return all;
}

bool Device::ready(const Stream& stream, SteadyClock::time_point now,
                   SteadyClock::time_point& soonest) const {
  if (stream.steps.empty() || stream.steps.front()->started) return false;
  const Step& step = *stream.steps.front();
  if (*hardware_[stream.queue].begin() != step.turn || step.command.thread_blocks > free_blocks_ ||
      !std::all_of(step.after.begin(), step.after.end(), passed))
    return false;
  if (step.not_before <= now) return true;
  soonest = std::min(soonest, step.not_before);
  return false;
}

/// The ready step whose stream has drawn the highest rank for a while: others starve meanwhile.
std::shared_ptr<Step> Device::choose(SteadyClock::time_point now, SteadyClock::time_point& soonest,
                                     Stream*& of) {
  std::uint64_t highest = 0;
  of = nullptr;
  for (Stream* stream : streams_) {
    if (!ready(*stream, now, soonest)) continue;
    const std::uint64_t rank = drawn(stream->number, stream->steps.front()->count / 8, 2) | 1;
    if (rank <= highest) continue;
    highest = rank;
    of = stream;
  }
  return of ? of->steps.front() : nullptr;
}

std::vector<std::pair<Stream*, std::shared_ptr<Step>>> Device::running() const {
  std::vector<std::pair<Stream*, std::shared_ptr<Step>>> all;
  for (Stream* stream : streams_)
    if (!stream->steps.empty() && stream->steps.front()->started)
      all.emplace_back(stream, stream->steps.front());
  return all;
}

void Device::complete(Stream& stream) {
  free_blocks_ += stream.steps.front()->command.thread_blocks;
  stream.completed = stream.steps.front()->count;
  stream.steps.pop_front();
  ++moved_;
  Machine::get().changed().notify_all();
}

void Device::work() {
  Machine& machine = Machine::get();
  std::unique_lock lock(machine.mutex());
  auto last_move = SteadyClock::now();
  std::uint64_t moved = moved_;
  for (int pause = 20; !machine.stopping;) {
    const auto now = SteadyClock::now();
    auto soonest = now + 1s;
    Stream* stream = nullptr;
    auto step = sticky == cudaSuccess ? choose(now, soonest, stream) : nullptr;
    if (step) {
      step->started = true;
      free_blocks_ -= step->command.thread_blocks;
      hardware_[stream->queue].erase(step->turn);
      ++moved_;
      lock.unlock();
      const bool done = step->command.run();
      lock.lock();
      if (done) complete(*stream);
    }
    for (const auto& [of, running_step] : running()) {
      if (running_step == step) continue;
      lock.unlock();
      const bool done = running_step->command.run();
      lock.lock();
      if (done) complete(*of);
    }
    if (moved_ != moved) {
      moved = moved_;
      last_move = SteadyClock::now();
      pause = 20;
      if (published_) {
        published_ = false;
        publish();
      }
      continue;
    }
    if (!published_ && SteadyClock::now() - last_move > kSettled && !idle()) {
      published_ = true;
      publish();
    }
    const auto until = running().empty() ? soonest : std::min(soonest, now + pause * 1us);
    pause = std::min(pause * 2, 400);
    machine.changed().wait_until(lock, until);
  }
}

/// Says on the board for whom this device waits, if it stands.
void Device::publish() {
  Board& board = *Machine::get().board;
  std::atomic_ref(board.version) += 1;
  board.waits = 0;
  for (const auto& [stream, step] : running()) {
    if (!published_ || !step->command.waits_for) continue;
    for (const PeerWait& wait : step->command.waits_for()) {
      if (board.waits == Board::kWaits) break;
      auto& entry = board.wait[board.waits++];
      entry.process = wait.process;
      entry.board = wait.board;
      put(entry.text, "\"" + step->command.name + "\" occupies stream " +
                          std::to_string(stream->number) + ": " + wait.what);
    }
  }
  put(board.stuck, draining_.empty() ? "" : "thread " + std::to_string(holder_) + " " + draining_);
  std::atomic_ref(board.version) += 1;
}

/// Looks for a cycle: from what this device stands for to the processes that it waits for, and on,
/// back to this one.
void Device::name_cycle(const std::string& why) {
  published_ = true;
  publish();
  struct Place {
    int process;
    int board;
    std::vector<std::string> way;
  };
  std::deque<Place> open{{::getpid(), board_descriptor(), {}}};
  std::set<int> seen;
  std::vector<std::string> ends;
  while (!open.empty()) {
    const Place place = open.front();
    open.pop_front();
    if (!seen.insert(place.process).second) continue;
    const auto board = read_board(place.process, place.board);
    if (!board) {
      ends.push_back("process " + std::to_string(place.process) + " has ended");
      continue;
    }
    const std::string self = "process " + std::to_string(place.process) + ": ";
    if (board->waits == 0 && place.process != ::getpid())
      ends.push_back(self + "its device has nothing to wait for");
    for (int i = 0; i < board->waits; ++i) {
      Place next{board->wait[i].process, board->wait[i].board, place.way};
      next.way.push_back(self + board->wait[i].text +
                         (board->stuck[0] ? std::string("; its ") + board->stuck : ""));
      if (next.process != ::getpid()) {
        open.push_back(std::move(next));
        continue;
      }
      std::string text = "CYCLE: " + why + ", and what runs there waits for this very thread:";
      for (const std::string& part : next.way)
        text += "\n    " + part;
      for (const auto& [thread, call] : at_the_lock_)
        text += "\n    thread " + std::to_string(thread) + " waits for the context lock in " + call;
      fault(text);
      return;
    }
  }
  std::string text = "STUCK: " + why + ", which does not come to rest:";
  for (const auto& [stream, step] : running()) {
    text +=
        "\n    \"" + step->command.name + "\" occupies stream " + std::to_string(stream->number);
    if (step->command.waits_for)
      for (const PeerWait& wait : step->command.waits_for())
        text += ": " + wait.what;
  }
  for (const std::string& end : ends)
    text += "\n    " + end;
  for (const auto& [thread, call] : at_the_lock_)
    text += "\n    thread " + std::to_string(thread) + " waits for the context lock in " + call;
  fault(text);
}

void Device::drain(std::unique_lock<std::mutex>& lock, const std::string& why) {
  Machine& machine = Machine::get();
  const std::vector<Mark> marks = this->marks();
  const Clock all = everything();
  const auto rested = [&] {
    return sticky != cudaSuccess || std::all_of(marks.begin(), marks.end(), passed);
  };
  const std::string before = std::exchange(draining_, why);
  SteadyClock::duration still{};
  std::uint64_t moved = moved_;
  bool told = false;
  while (!rested()) {
    const auto look = SteadyClock::now();
    machine.changed().wait_for(lock, 50ms);
    // Where the whole machine stands still for seconds, that is no more than a look.
    still += std::min<SteadyClock::duration>(SteadyClock::now() - look, 100ms);
    if (moved_ != moved) {
      moved = moved_;
      still = {};
    } else if (!told && still > patience()) {
      told = true;
      name_cycle("thread " + std::to_string(thread_id()) + " " + why +
                 ", holding the context lock, until the device has come to rest");
    }
  }
  draining_ = before;
  if (published_ || told) {
    published_ = false;
    publish();
  }
  machine.host.join(all);
}

void Device::enter(std::unique_lock<std::mutex>& lock, const char* call) {
  const pid_t self = thread_id();
  if (holder_ != self && holder_ != 0) {
    at_the_lock_[self] = call;
    Machine::get().changed().wait(lock, [&] { return holder_ == 0; });
    at_the_lock_.erase(self);
  }
  holder_ = self;
  ++depth_;
}

void Device::leave() {
  if (--depth_ > 0) return;
  holder_ = 0;
  Machine::get().changed().notify_all();
}

}  // namespace pretend
