#include <fcntl.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/user_actors/classes.h"

namespace troupe::testing {

using namespace std::chrono_literals;

std::string Probe::fail(std::string text) {
  throw std::runtime_error(text);
}
void Probe::sleep(std::int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}
void Probe::stay(std::string file) {
  std::ofstream{file};
  std::this_thread::sleep_for(10min);
}
void Probe::await(std::string file) {
  while (!std::filesystem::exists(file))
    std::this_thread::sleep_for(5ms);
}
std::int64_t Probe::labour(std::int64_t milliseconds) {
  for (std::int64_t done = 0; done < milliseconds; done += 10) {
    std::this_thread::sleep_for(10ms);
    context_.progress();
  }
  return milliseconds;
}
void Probe::crash(std::int64_t signal) {
  std::fprintf(stderr, "about to crash\n");
  ::signal(static_cast<int>(signal), SIG_DFL);  // a sanitizer takes some for itself
  raise(static_cast<int>(signal));
  std::this_thread::sleep_for(10s);
}
void Probe::leave(std::int64_t code) {
  std::_Exit(static_cast<int>(code));
}
Array Probe::array(std::int64_t elements, float value) {
  return Array::of(std::vector<float>(static_cast<std::size_t>(elements), value), {elements});
}
std::vector<std::string> Probe::open_to_children() const {
  std::vector<std::string> open;
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    const int flags = fcntl(descriptor, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) continue;
    const auto link = "/proc/self/fd/" + std::to_string(descriptor);
    open.push_back(std::filesystem::read_symlink(link).string());
  }
  return open;
}
double Probe::sum(Array array) const {
  double sum = 0;
  for (const float number : array.to<float>())
    sum += number;
  return sum;
}
Array Probe::twice(Array array) const {
  auto numbers = array.to<float>();
  for (auto& number : numbers)
    number *= 2;
  return Array::of(numbers, array.shape);
}
std::int64_t Probe::call_other(ActorHandle<Counter> other, std::int64_t amount) {
  const auto sum = other.call<&Counter::add>(amount).wait(60s);
  if (!sum) throw std::runtime_error(to_string(sum.error().code) + ": " + sum.error().what);
  return sum.value();
}
ActorHandle<Counter> Probe::spawn_counter(std::int64_t start, bool detached) {
  auto counter = context_.actors().spawn<Counter>({.detached = detached}, start);
  if (!counter) throw std::runtime_error(counter.error().what);
  return counter.value();
}
ActorHandle<Counter> Probe::find_counter(std::string name) {
  auto counter = context_.actors().get<Counter>(name);
  if (!counter) throw std::runtime_error(counter.error().what);
  return counter.value();
}
std::map<std::string, Point> Probe::points(std::optional<Point> point, std::vector<Point> more) {
  std::map<std::string, Point> all;
  if (point) all["first"] = *point;
  for (std::size_t i = 0; i < more.size(); ++i)
    all[std::to_string(i)] = more[i];
  return all;
}

Fussy::Fussy(bool content) {
  if (!content) throw std::runtime_error("this will not do");
}

}  // namespace troupe::testing

TROUPE_PLUGIN(troupe::testing::Counter, troupe::testing::Probe, troupe::testing::Fussy)
