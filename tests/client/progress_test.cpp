#include "client/cli/progress.h"

#include <sstream>

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::cli;

namespace {

Progress step(int number, double seconds_per_step = 0.5) {
  Progress progress;
  progress.phase = JobPhase::denoising;
  progress.step = number;
  progress.steps = 20;
  progress.seconds_per_step = seconds_per_step;
  return progress;
}

Progress phase(JobPhase which) {
  Progress progress;
  progress.phase = which;
  return progress;
}

}  // namespace

TEST_CASE(
    "off a terminal: a line per phase, at most one a second for steps, the last step always") {
  std::ostringstream out;
  std::chrono::steady_clock::time_point now{};
  ProgressView view(
      out, ProgressStyle::lines, [] { return 80; }, [&] { return now; });
  view.show(phase(JobPhase::loading));
  view.show(phase(JobPhase::loading));
  for (int i = 0; i <= 20; ++i) {
    view.show(step(i));
    now += std::chrono::milliseconds(400);
  }
  view.show(phase(JobPhase::decoding));
  const std::string text = out.str();
  CHECK(text.find("loading\ndenoising step 0/20, 0.50 s/step, 10 s left\n") == 0);
  CHECK(text.find("loading", 1) == std::string::npos);
  CHECK(text.find("step 1/20") == std::string::npos);
  CHECK(text.find("step 3/20") != std::string::npos);
  CHECK(text.find("denoising step 20/20, 0.50 s/step\ndecoding\n") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
}

TEST_CASE(
    "on a terminal: one line that is drawn over, never wider than the terminal, and taken away at "
    "the end") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::bar, [] { return 40; });
  view.show(step(10));
  CHECK(out.str() == "\rdenoising 50% 10/20\x1b[K");
  view.finish();
  CHECK(out.str().substr(out.str().size() - 4) == "\r\x1b[K");
  const auto size = out.str().size();
  view.finish();
  CHECK(out.str().size() == size);
}

TEST_CASE("a narrower terminal: what was wrapped is taken away, and each bar fits") {
  std::ostringstream out;
  int width = 100;
  ProgressView view(out, ProgressStyle::bar, [&] { return width; });
  view.show(step(10));
  const auto wide = out.str().size() - 1 - 3;
  CHECK(wide > 60);
  width = 30;
  out.str("");
  view.show(step(11));
  // The terminal has made three lines of it.
  CHECK(out.str() == "\x1b[2A\r\x1b[Jdenoising 55% 11/20\x1b[K");
  out.str("");
  view.show(step(12));
  CHECK(out.str() == "\rdenoising 60% 12/20\x1b[K");
}

TEST_CASE("a bar's time goes on where no progress comes") {
  std::ostringstream out;
  std::chrono::steady_clock::time_point now{};
  ProgressView view(
      out, ProgressStyle::bar, [] { return 100; }, [&] { return now; });
  view.tick();
  CHECK(out.str().empty());
  view.show(phase(JobPhase::text));
  CHECK(out.str() == "\rtext\x1b[K");
  now += std::chrono::milliseconds(500);
  view.tick();
  CHECK(out.str() == "\rtext\x1b[K");
  now += std::chrono::seconds(75);
  view.tick();
  CHECK(out.str() == "\rtext\x1b[K\rtext, 1 min 15 s\x1b[K");
  view.finish();
  out.str("");
  now += std::chrono::seconds(75);
  view.tick();
  CHECK(out.str().empty());
}

TEST_CASE("who waits in the queue is told how many are before him") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::lines);
  Progress progress = phase(JobPhase::queued);
  progress.queue_position = 2;
  view.show(progress);
  CHECK(out.str() == "queued behind 2 jobs\n");
}

TEST_CASE("who waits in the queue is told once what for, also where nobody is before him") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::lines);
  CHECK(view.is_waiting());
  view.show_waiting("waits for 2 idle actors");
  view.show_waiting("waits for 2 idle actors");
  view.show_waiting("waits for memory");
  CHECK(out.str() == "queued: waits for 2 idle actors\nqueued: waits for memory\n");
  view.show(phase(JobPhase::loading));
  CHECK_FALSE(view.is_waiting());
  CHECK_FALSE(ProgressView(out, ProgressStyle::quiet).is_waiting());
}

TEST_CASE("a bar says percent, step, steps, seconds per step and the time left") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::bar, [] { return 100; });
  view.show(step(5, 2.0));
  CHECK(out.str().find("[######..................] 25% 5/20, 2.00 s/step, 30 s left") !=
        std::string::npos);
}

TEST_CASE("warnings are shown in every style") {
  for (const auto style : {ProgressStyle::quiet, ProgressStyle::lines, ProgressStyle::bar}) {
    std::ostringstream out;
    ProgressView view(out, style, [] { return 80; });
    Progress progress = phase(JobPhase::text);
    progress.warnings = {"prompt 0 is cut"};
    view.show(progress);
    CHECK(out.str().find("troupe: warning: prompt 0 is cut\n") != std::string::npos);
  }
}

TEST_CASE("quiet shows nothing else") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::quiet, [] { return 80; });
  view.show(step(3));
  view.finish();
  CHECK(out.str().empty());
}

TEST_CASE("seconds have a unit that fits") {
  CHECK(seconds_text(0.0123) == "12 ms");
  CHECK(seconds_text(1.234) == "1.23 s");
  CHECK(seconds_text(75) == "75 s");
  CHECK(seconds_text(600) == "10.0 min");
  CHECK(seconds_text(9000) == "2.5 h");
}

TEST_CASE("a last step that is told with the next phase has its line all the same") {
  std::ostringstream out;
  ProgressView view(out, ProgressStyle::lines, [] { return 80; });
  view.show(step(1));
  Progress next = step(20);
  next.phase = JobPhase::decoding;
  view.show(next);
  CHECK(out.str().find("denoising step 20/20, 0.50 s/step\ndecoding\n") != std::string::npos);
}
