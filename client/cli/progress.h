#pragma once
#include <chrono>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

#include "troupe/client.h"

namespace troupe::cli {

enum class ProgressStyle { quiet, lines, bar };

/// A bar on a terminal, lines elsewhere, nothing when asked to be quiet; for standard error.
ProgressStyle progress_style(bool quiet);

/// Columns of the terminal on standard error, 80 when that is unknown.
int terminal_width();

/// Shows how a job goes on: phase, percent, step, steps, seconds per step, time left, time so far,
/// warnings. Not thread-safe: one thread calls.
class ProgressView {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  using Width = std::function<int()>;

  /// `width` is asked each time: a terminal may become narrower.
  ProgressView(std::ostream& out, ProgressStyle style, Width width = terminal_width,
               Clock clock = nullptr);

  void show(const Progress& progress);
  /// Shows what is done before there is a job: "starting 2 actors".
  void show(const std::string& text);
  /// Shows what a job in the queue waits for: "waits for 2 idle actors"; "" where nobody says.
  void show_waiting(const std::string& cause);
  /// Returns whether nothing else is known than that the job is in the queue, and somebody looks.
  bool is_waiting() const {
    return style_ != ProgressStyle::quiet && shown_.phase == JobPhase::queued;
  }
  /// Draws the bar again if a second has passed, so that the time goes on.
  void tick();
  /// Takes the bar away, so that what is printed next starts on a line of its own.
  void finish();

 private:
  void draw_bar();
  void print_line(const Progress& progress);
  std::string bar_text(std::size_t room) const;
  std::string waiting_text() const;
  /// Moves the cursor to the beginning of the bar that stands there.
  void go_back();

  std::ostream& out_;
  ProgressStyle style_;
  Width width_;
  Clock clock_;
  std::chrono::steady_clock::time_point began_;
  Progress shown_;                 // the last progress, without what it carried
  std::string before_;             // what is done before there is a job
  std::string waits_for_;          // of a job in the queue
  std::optional<JobPhase> phase_;  // of the line that was printed last
  std::chrono::steady_clock::time_point printed_at_{};
  int printed_step_ = -1;
  std::size_t drawn_ = 0;  // characters of the bar; 0 = none stands there
};

}  // namespace troupe::cli
