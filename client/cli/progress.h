#pragma once
#include <chrono>
#include <functional>
#include <iosfwd>
#include <string>

#include "troupe/client.h"

namespace troupe::cli {

enum class ProgressStyle { quiet, lines, bar };

/// A bar on a terminal, lines elsewhere, nothing when asked to be quiet; for standard error.
ProgressStyle progress_style(bool quiet);

/// Columns of the terminal on standard error, 80 when that is unknown.
int terminal_width();

/// Shows how a job goes on: phase, step, steps, seconds per step, time left, warnings.
/// Not thread-safe: one thread calls.
class ProgressView {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  ProgressView(std::ostream& out, ProgressStyle style, int width, Clock clock = nullptr);

  void show(const Progress& progress);
  /// Takes the bar away, so that what is printed next starts on a line of its own.
  void finish();

 private:
  void draw_bar(const Progress& progress);
  void print_line(const Progress& progress);

  std::ostream& out_;
  ProgressStyle style_;
  int width_;
  Clock clock_;
  std::string phase_;
  std::chrono::steady_clock::time_point printed_at_{};
  int printed_step_ = -1;
  bool drawn_ = false;
};

}  // namespace troupe::cli
