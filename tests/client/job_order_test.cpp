#include <map>
#include <random>

#include "client/conversation.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

/// Blobs that arrive when, and in the order, a test says.
struct Shelf {
  std::vector<std::pair<wire::BlobRef, control::BlobHandler>> asked;

  client::FetchBlob fetch() {
    return [this](const wire::BlobRef& blob, control::BlobHandler handler) {
      asked.push_back({blob, std::move(handler)});
    };
  }
  void deliver(std::size_t which) {
    auto [blob, handler] = std::move(asked[which]);
    asked.erase(asked.begin() + static_cast<std::ptrdiff_t>(which));
    control::BlobResult result;
    result.bytes = std::make_shared<const std::string>(std::to_string(blob.id));
    handler(result);
  }
};

wire::JobProgress step(int number, int blobs) {
  wire::JobProgress progress;
  progress.phase = JobPhase::denoising;
  progress.step = number;
  for (int i = 0; i < blobs; ++i)
    progress.blobs.push_back({"preview", static_cast<std::uint64_t>(number), 1, {}});
  progress.timestep = 1000 - number;
  progress.blobs_step = number - 1;  // the blobs of an earlier step
  return progress;
}

}  // namespace

TEST_CASE("whatever order blobs come in, progress is handed on in order and the end last") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Shelf shelf;
    std::vector<int> steps;
    std::optional<Result<JobResult>> end;
    auto follower = std::make_shared<client::JobFollower>(
        1, shelf.fetch(), [&](Result<JobResult> r) { end = std::move(r); });
    follower->on_progress(
        [&](const Progress& progress) {
          CHECK_FALSE(end);
          steps.push_back(progress.step);
          CHECK(progress.timestep == 1000 - progress.step);
          if (!progress.preview_png.empty())
            CHECK(progress.preview_png == std::to_string(progress.interim_step + 1));
        },
        nullptr);
    int sent = 0;
    while (sent < 8 || !shelf.asked.empty()) {
      if (sent < 8 && random() % 2) {
        follower->add(step(++sent, static_cast<int>(random() % 3)));
      } else if (!shelf.asked.empty()) {
        shelf.deliver(random() % shelf.asked.size());
      }
    }
    wire::JobFinished finished;
    finished.job = 1;
    finished.state = JobState::succeeded;
    for (std::uint64_t id = 0; id < 5; ++id)
      finished.blobs.push_back({"picture", id, 1, {}});
    follower->add(finished);
    while (!shelf.asked.empty())
      shelf.deliver(random() % shelf.asked.size());
    CHECK(steps == std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8});
    REQUIRE(end);
    REQUIRE(end->ok());
    for (std::size_t i = 0; i < 5; ++i)
      CHECK(end->value().pictures.at(i).png == std::to_string(i));
  }
}

TEST_CASE("a job that was ended early stays ended when its blobs come after all") {
  Shelf shelf;
  int ends = 0;
  auto follower =
      std::make_shared<client::JobFollower>(1, shelf.fetch(), [&](const Result<JobResult>& r) {
        ++ends;
        CHECK(r.error().code == ErrorCode::lost);
      });
  follower->add(step(1, 2));
  follower->end(Error{ErrorCode::lost, "gone"});
  follower->add(wire::JobFinished{});
  while (!shelf.asked.empty())
    shelf.deliver(0);
  CHECK(ends == 1);
}

TEST_CASE("a picture that cannot be fetched is not a lost connection") {
  std::optional<Result<JobResult>> end;
  auto follower = std::make_shared<client::JobFollower>(
      1,
      [](const wire::BlobRef&, const control::BlobHandler& handler) {
        control::BlobResult failed;
        failed.failure = {wire::FailureCode::not_found, "no such blob"};
        handler(failed);
      },
      [&](Result<JobResult> r) { end = std::move(r); });
  wire::JobFinished finished;
  finished.job = 1;
  finished.state = JobState::succeeded;
  finished.blobs.push_back({"picture", 1, 1, {}});
  follower->add(finished);
  REQUIRE(end);
  CHECK(end->error().code == ErrorCode::not_fetched);
  CHECK(end->error().what.find("no such blob") != std::string::npos);
}
