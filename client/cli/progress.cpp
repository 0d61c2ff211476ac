#include "client/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string_view>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/table.h"
#include "client/cli/terminal.h"

namespace troupe::cli {
namespace {

constexpr auto kLineInterval = std::chrono::seconds(1);
constexpr int kBarWidth = 24;

std::string rate_text(const Progress& progress) {
  if (progress.seconds_per_step <= 0) return "";
  std::string text = ", " + seconds_text(progress.seconds_per_step) + "/step";
  const int left = progress.steps - progress.step;
  if (left > 0) text += ", " + seconds_text(left * progress.seconds_per_step) + " left";
  return text;
}

bool counts_steps(const Progress& progress) {
  return progress.phase == "denoising" && progress.steps > 0;
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

ProgressView::ProgressView(std::ostream& out, ProgressStyle style, int width, Clock clock)
    : out_(out), style_(style), width_(width), clock_(std::move(clock)) {
  if (!clock_) clock_ = [] { return std::chrono::steady_clock::now(); };
}

void ProgressView::show(const Progress& progress) {
  for (const std::string& warning : progress.warnings) {
    finish();
    out_ << "troupe: warning: " << printable(warning) << "\n";
  }
  if (style_ == ProgressStyle::bar) draw_bar(progress);
  if (style_ == ProgressStyle::lines) print_line(progress);
  out_.flush();
}

void ProgressView::draw_bar(const Progress& progress) {
  std::string text = progress.phase;
  if (counts_steps(progress)) {
    const int filled = std::clamp(progress.step * kBarWidth / progress.steps, 0, kBarWidth);
    text += " [" + std::string(filled, '#') + std::string(kBarWidth - filled, '.') + "] ";
    text += steps_text(progress);
  }
  if (width_ > 1 && text.size() > static_cast<std::size_t>(width_ - 1)) text.resize(width_ - 1);
  out_ << "\r" << text << "\x1b[K";
  drawn_ = true;
}

void ProgressView::print_line(const Progress& progress) {
  const auto now = clock_();
  const bool new_phase = progress.phase != phase_;
  const bool all_steps_done = progress.steps > 0 && progress.step == progress.steps;
  if (new_phase && phase_ == "denoising" && all_steps_done && printed_step_ != progress.step) {
    out_ << phase_ << " step " << steps_text(progress) << "\n";
  }
  if (!new_phase && !counts_steps(progress)) return;
  if (!new_phase && !all_steps_done && now - printed_at_ < kLineInterval) return;
  phase_ = progress.phase;
  printed_at_ = now;
  printed_step_ = progress.step;
  out_ << progress.phase;
  if (counts_steps(progress)) out_ << " step " << steps_text(progress);
  out_ << "\n";
}

void ProgressView::finish() {
  if (!drawn_) return;
  out_ << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

}  // namespace troupe::cli
