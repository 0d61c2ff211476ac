#include "client/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

constexpr auto kLineInterval = std::chrono::seconds(1);
constexpr int kBarWidth = 24;
constexpr int kNarrowBarWidth = 10;

std::string rate_text(const Progress& progress) {
  if (progress.seconds_per_step <= 0) return "";
  std::string text = ", " + seconds_text(progress.seconds_per_step) + "/step";
  const int left = progress.steps - progress.step;
  if (left > 0) text += ", " + seconds_text(left * progress.seconds_per_step) + " left";
  return text;
}

bool counts_steps(const Progress& progress) {
  return progress.phase == JobPhase::denoising && progress.steps > 0;
}

std::string phase_text(const Progress& progress) {
  if (progress.phase == JobPhase::unreachable) return "waiting for the controller";
  if (progress.phase != JobPhase::queued || progress.queue_position == 0)
    return to_string(progress.phase);
  return "queued behind " + counted(progress.queue_position, "job");
}

std::string steps_text(const Progress& progress) {
  return fmt::format("{}/{}{}", progress.step, progress.steps, rate_text(progress));
}

}  // namespace

ProgressStyle progress_style(bool quiet) {
  if (quiet) return ProgressStyle::quiet;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || std::string_view(term) == "dumb";
  return isatty(STDERR_FILENO) && !dumb ? ProgressStyle::bar : ProgressStyle::lines;
}

int terminal_width() {
  const auto columns = terminal_columns(STDERR_FILENO);
  return columns == 0 ? 80 : static_cast<int>(columns);
}

ProgressView::ProgressView(std::ostream& out, ProgressStyle style, Width width, Clock clock)
    : out_(out), style_(style), width_(std::move(width)), clock_(std::move(clock)) {
  if (!clock_) clock_ = [] { return std::chrono::steady_clock::now(); };
  began_ = clock_();
}

void ProgressView::show(const Progress& progress) {
  for (const std::string& warning : progress.warnings) {
    finish();
    out_ << coloured("troupe: warning:", Colour::yellow, STDERR_FILENO) << " "
         << printable(in_options(warning)) << "\n";
  }
  before_.clear();
  shown_.phase = progress.phase;
  shown_.step = progress.step;
  shown_.steps = progress.steps;
  shown_.seconds_per_step = progress.seconds_per_step;
  shown_.queue_position = progress.queue_position;
  if (style_ == ProgressStyle::bar) draw_bar();
  if (style_ == ProgressStyle::lines) print_line(progress);
  out_.flush();
}

void ProgressView::show(const std::string& text) {
  before_ = text;
  draw_bar();
  out_.flush();
}

void ProgressView::show_waiting(const std::string& cause) {
  const bool anew = phase_ != JobPhase::queued || waits_for_ != cause;
  waits_for_ = cause;
  if (style_ == ProgressStyle::bar) {
    draw_bar();
  } else if (style_ == ProgressStyle::lines && anew) {
    phase_ = JobPhase::queued;
    out_ << waiting_text() << "\n";
  }
  out_.flush();
}

std::string ProgressView::waiting_text() const {
  return phase_text(shown_) + (waits_for_.empty() ? "" : ": " + printable(waits_for_));
}

void ProgressView::tick() {
  if (drawn_ == 0 || clock_() - printed_at_ < kLineInterval) return;
  draw_bar();
  out_.flush();
}

/// Returns the text of the bar, as much as `room` characters hold.
std::string ProgressView::bar_text(std::size_t room) const {
  const double seconds = std::chrono::duration<double>(clock_() - began_).count();
  const std::string so_far = seconds < 1    ? ""
                             : seconds < 60 ? fmt::format(", {} s", static_cast<int>(seconds))
                                            : ", " + duration_text(seconds);
  const std::string phase = !before_.empty() ? before_
                            : is_waiting()   ? waiting_text()
                                             : phase_text(shown_);
  std::vector<std::string> texts;  // the richest first
  if (counts_steps(shown_)) {
    const auto bar = [&](int width) {
      const int filled = std::clamp(shown_.step * width / shown_.steps, 0, width);
      return " [" + std::string(filled, '#') + std::string(width - filled, '.') + "]";
    };
    const auto percent = fmt::format(" {}%", 100 * shown_.step / shown_.steps);
    const auto steps = fmt::format(" {}/{}", shown_.step, shown_.steps);
    const auto rate = rate_text(shown_);
    texts = {phase + bar(kBarWidth) + percent + steps + rate + so_far,
             phase + bar(kBarWidth) + percent + steps + rate,
             phase + bar(kNarrowBarWidth) + percent + steps + rate, phase + percent + steps + rate,
             phase + percent + steps};
  } else {
    texts = {phase + so_far, phase};
  }
  for (const std::string& text : texts)
    if (text.size() <= room) return text;
  return texts.back().substr(0, room);
}

void ProgressView::go_back() {
  // Most terminals wrap a line anew that has become too long for them.
  const auto columns = static_cast<std::size_t>(std::max(width_(), 1));
  if (const auto above = drawn_ == 0 ? 0 : (drawn_ - 1) / columns; above > 0)
    out_ << "\x1b[" << above << "A\r\x1b[J";
  else
    out_ << "\r";
}

void ProgressView::draw_bar() {
  const int width = width_();
  const std::string text = bar_text(width > 1 ? static_cast<std::size_t>(width - 1) : 1);
  go_back();
  out_ << text << "\x1b[K";
  drawn_ = text.size();
  printed_at_ = clock_();
}

void ProgressView::print_line(const Progress& progress) {
  const auto now = clock_();
  const bool new_phase = progress.phase != phase_;
  const bool all_steps_done = progress.steps > 0 && progress.step == progress.steps;
  if (new_phase && phase_ == JobPhase::denoising && all_steps_done &&
      printed_step_ != progress.step) {
    out_ << *phase_ << " step " << steps_text(progress) << "\n";
  }
  if (!new_phase && !counts_steps(progress)) return;
  if (!new_phase && !all_steps_done && now - printed_at_ < kLineInterval) return;
  phase_ = progress.phase;
  printed_at_ = now;
  printed_step_ = progress.step;
  out_ << phase_text(progress);
  if (counts_steps(progress)) out_ << " step " << steps_text(progress);
  out_ << "\n";
}

void ProgressView::finish() {
  if (drawn_ == 0) return;
  go_back();
  out_ << "\x1b[K" << std::flush;
  drawn_ = 0;
}

}  // namespace troupe::cli
