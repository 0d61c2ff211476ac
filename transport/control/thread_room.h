#pragma once
#include <latch>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace troupe::control {

/// To be asked before a ZeroMQ context is made: where its threads cannot be started, ZeroMQ ends
/// the whole process. Throws std::runtime_error where `count` threads cannot be had at once.
inline void check_thread_room(int count = 8) {
  std::latch done(1);
  std::vector<std::thread> threads;
  std::string why;
  try {
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&done] { done.wait(); });
  } catch (const std::system_error& error) {
    why = error.code().message();
  }
  done.count_down();
  for (auto& thread : threads)
    thread.join();
  if (!why.empty())
    throw std::runtime_error("[control] no more threads can be started: " + why +
                             " (the limit of processes and threads: ulimit -u)");
}

}  // namespace troupe::control
