// Everything that a controller tells two actors comes twice, at once or while they are at work: as
// if the numbers of the link had let it through. The rooms of the controller are real, and so are
// the actors.
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/actors/real_actors.h"
#include "transport/wire/done.h"

using namespace troupe;

namespace {

/// Says all that it says `copies` times.
class Echoing final : public cluster::Environment {
 public:
  Echoing(cluster::Environment& live, int copies) : live_(live), copies_(copies) {}

  double now() const override { return live_.now(); }
  std::uint64_t random() override { return live_.random(); }
  void after(double seconds, std::function<void()> action) override {
    live_.after(seconds, std::move(action));
  }
  bool send_frame(control::PeerId peer, std::string frame) override {
    again([this, peer, frame] { live_.send_frame(peer, frame); });
    return live_.send_frame(peer, std::move(frame));
  }
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override {
    const auto kind = wire::decode_header(wire::as_bytes(frame)).kind;
    const auto unheard = [this, kind](const control::Reply& reply) {
      if (!reply)
        failures.push_back(std::to_string(static_cast<int>(kind)) + " " + reply.failure().what);
    };
    // Groups to one of the two only: if it connected anew, it would find nobody.
    if (kind != wire::Kind::connect_groups || peer % 2 == 0) {
      again([this, peer, frame, deadline, unheard] {
        live_.request_frame(peer, frame, deadline, unheard);
      });
    }
    live_.request_frame(peer, std::move(frame), deadline, std::move(handler));
  }
  void drop(control::PeerId peer, const std::string& why) override { live_.drop(peer, why); }
  std::optional<double> last_progress(control::PeerId peer) const override {
    return live_.last_progress(peer);
  }
  void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                  control::Milliseconds deadline, control::BlobHandler handler) override {
    live_.fetch_blob(incarnation, blob, deadline, std::move(handler));
  }
  control::BlobId keep_blob(control::BlobBytes bytes) override {
    return live_.keep_blob(std::move(bytes));
  }
  void drop_blob(control::BlobId id) override { live_.drop_blob(id); }
  std::uint32_t spawn(const cluster::Actor&, std::uint64_t) override { return 0; }
  void kill(cluster::ActorId, const std::string&) override {}

  std::vector<std::string> failures;  // that the second ones were answered with
  std::size_t repeated = 0;

 private:
  /// Says it again; every second time when something else has been said and done.
  void again(const std::function<void()>& say) {
    for (int copy = 1; copy < copies_; ++copy) {
      ++repeated;
      live_.after(repeated % 2 ? 0 : 0.02 * static_cast<double>(random_() % 8), say);
    }
  }

  cluster::Environment& live_;
  int copies_;
  std::mt19937 random_{7};
};

struct ToldActors : test::RealActors {
  explicit ToldActors(int copies)
      : RealActors([copies](cluster::LiveEnvironment& live) {
          return std::make_unique<Echoing>(live, copies);
        }) {
    start();
  }
  ~ToldActors() { stop(); }

  jobs::JobId begin(std::uint64_t seed) {
    auto job = spec(seed);
    job.request.steps = 4;
    return submit(job);
  }
  const Echoing& echo() const { return static_cast<const Echoing&>(environment); }
};

}  // namespace

TEST_CASE(
    "what a controller says twice, a stage actor does once: loads, groups, jobs, tasks, ends") {
  std::vector<std::string> once;
  for (const int copies : {1, 3}) {
    CAPTURE(copies);
    ToldActors stage(copies);
    // Two jobs side by side, then one on what is loaded, then one whose epoch ends in its midst.
    const auto first = stage.begin(1), second = stage.begin(2);
    std::vector<std::string> results{stage.result(first), stage.result(second)};
    results.push_back(stage.result(stage.begin(3)));
    CHECK(stage.echo().failures == std::vector<std::string>{});
    const auto fourth = stage.begin(4);
    REQUIRE(stage.until([&] { return stage.table.find(fourth)->phase == JobPhase::denoising; }));
    const auto deployment = stage.deployments.in_use(0);
    REQUIRE(deployment);
    const auto epoch = deployment->epoch;
    stage.runner.interrupt_jobs(deployment, "a test");
    REQUIRE(stage.until([&] { return has_ended(stage.table.find(fourth)->state); }));
    CHECK(stage.table.find(fourth)->state == JobState::succeeded);
    CHECK(deployment->epoch == epoch + 1);  // no second attempt was needed
    results.push_back(stage.result(stage.begin(1)));
    CHECK(results.front() == results.back());
    for (const auto& result : results)
      CHECK(result.size() > 1000);
    CHECK(stage.troubles == std::vector<std::string>{});
    CHECK((stage.echo().repeated > 100) == (copies > 1));
    if (copies == 1) once = results;
    CHECK(results == once);
  }
}
