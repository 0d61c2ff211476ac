// Jobs at two real actors on threads of this process, which rehearse each job before it begins, as
// on a GPU; and whose tasks end when a device of the test's says so. The rooms of the controller
// are real.
#include "actors/stage/rehearsal.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/actors/real_actors.h"

using namespace troupe;
using actors::WorkEvent;

namespace {

/// Marks are passed so long after they were set, or not at all while it hangs.
class LateClock final : public actors::DeviceClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  std::unique_ptr<actors::DeviceMark> mark() override {
    ++marks;
    return std::make_unique<Mark>(*this);
  }
  std::atomic<bool> hangs = false;
  std::atomic<int> marks = 0;

 private:
  struct Mark final : actors::DeviceMark {
    explicit Mark(LateClock& clock) : clock(clock) {}
    bool passed() const override { return !clock.hangs && std::chrono::steady_clock::now() >= at; }
    double seconds_since(const actors::DeviceMark& earlier) const override {
      return std::chrono::duration<double>(at - static_cast<const Mark&>(earlier).at).count();
    }
    LateClock& clock;
    Time at = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
  };
};

struct Event {
  int actor;
  WorkEvent what;
  std::uint64_t job;
};

struct Setting {
  bool rehearses = false;
  bool late = false;  // with a LateClock
};

struct RehearsedActors : test::RealActors {
  explicit RehearsedActors(const Setting& setting) {
    start([&](int i, actors::ActorOptions& options) {
      if (setting.late) clocks.push_back(std::make_shared<LateClock>());
      options.rehearses = setting.rehearses;
      options.clock = setting.late ? clocks.back() : nullptr;
      options.cache_flushes = [this] { return flushes.load(); };
      options.on_event = [this, i](WorkEvent what, std::uint64_t job) {
        if (what == WorkEvent::rehearses && flush_in_midst) ++flushes;
        std::lock_guard lock(mutex);
        events.push_back({i, what, job});
      };
    });
  }
  ~RehearsedActors() { stop(); }

  std::vector<Event> seen() {
    std::lock_guard lock(mutex);
    return events;
  }
  int count(WorkEvent what) {
    int count = 0;
    for (const auto& event : seen())
      count += event.what == what ? 1 : 0;
    return count;
  }

  std::atomic<std::int64_t> flushes = 0;  // of the allocator's cache, at both actors
  std::atomic<bool> flush_in_midst = false;
  std::mutex mutex;
  std::vector<Event> events;
  std::vector<std::shared_ptr<LateClock>> clocks;
};

}  // namespace

TEST_CASE(
    "a job is rehearsed once a shape, before any of its receives is posted, and keeps its bits") {
  auto other = RehearsedActors::spec(1);
  other.request.num_pipeline_patch = 3;
  const auto results_of = [&](RehearsedActors& stage) {
    std::vector<std::string> results;
    for (const auto& spec : {RehearsedActors::spec(1), RehearsedActors::spec(2), other})
      results.push_back(stage.result(stage.submit(spec)));
    return results;
  };
  // One after the other: a stage whose loop is not turned loses its actors.
  std::vector<std::string> without;
  int receives = 0;
  {
    RehearsedActors plain({.rehearses = false});
    without = results_of(plain);
    CHECK(plain.count(WorkEvent::rehearses) == 0);
    receives = plain.count(WorkEvent::posts_receive);
    CHECK(receives > 0);
  }
  RehearsedActors rehearsing({.rehearses = true});
  const auto with = results_of(rehearsing);
  CHECK(with == without);
  for (const auto& result : with)
    CHECK(result.size() > 1000);
  CHECK(rehearsing.count(WorkEvent::posts_receive) == receives);
  CHECK(rehearsing.count(WorkEvent::rehearses) == 4);  // two shapes at two actors
  CHECK(rehearsing.count(WorkEvent::rehearsed) == 4);
  for (int actor = 0; actor < 2; ++actor) {
    std::set<std::uint64_t> received;
    bool under_way = false;
    for (const auto& [at, what, job] : rehearsing.seen()) {
      if (at != actor) continue;
      if (what == WorkEvent::rehearses) CHECK_FALSE(received.contains(job));
      if (what == WorkEvent::posts_receive) {
        CHECK_FALSE(under_way);
        received.insert(job);
      }
      if (what == WorkEvent::rehearses) under_way = true;
      if (what == WorkEvent::rehearsed) under_way = false;
    }
    CHECK(received.size() == 3);
  }
}

TEST_CASE("steps behind a long warm-up are rehearsed, and of an exact job those behind the first") {
  const auto rehearsed = [](const std::string& model, Method method, int warmup) {
    RehearsedActors stage({.rehearses = true});
    auto spec = RehearsedActors::spec(1, model);
    spec.request.method = method;
    spec.request.warmup_steps = warmup;
    if (method == Method::exact) spec.request.num_pipeline_patch = 1;
    if (model == "tiny-sd15") spec.request.max_sequence_length = 77;
    if (method == Method::distrifusion) {
      spec.parallelism.pp = 1;
      spec.parallelism.ring = 2;
    }
    CHECK(stage.result(stage.submit(spec)).size() > 1000);
    // Both actors do the same.
    CHECK(stage.count(WorkEvent::rehearsed) == 2);
    return std::pair{stage.count(WorkEvent::rehearses_whole) / 2,
                     stage.count(WorkEvent::rehearses_patches) / 2};
  };
  for (const auto& [model, method] :
       {std::pair{"tiny-pixart", Method::pipefusion}, {"tiny-sd15", Method::distrifusion}}) {
    CAPTURE(std::string(model));
    for (const int warmup : {1, 2, 4}) {
      CAPTURE(warmup);
      const auto [whole, patches] = rehearsed(model, method, warmup);
      CHECK(whole >= 1);
      CHECK(whole <= 3);
      CHECK(patches >= 2);  // one takes latents of the warm-up, the next one of patches
    }
  }
  CHECK(rehearsed("tiny-pixart", Method::exact, 0) == std::pair{3, 0});
}

TEST_CASE("when the allocator has handed back what it kept, jobs are rehearsed anew") {
  RehearsedActors stage({.rehearses = true});
  const auto rehearsals_of = [&](const std::string& model, std::uint64_t seed) {
    const auto before = stage.count(WorkEvent::rehearsed);
    CHECK(stage.result(stage.submit(RehearsedActors::spec(seed, model))).size() > 1000);
    return stage.count(WorkEvent::rehearsed) - before;
  };
  CHECK(rehearsals_of("tiny-pixart", 1) == 2);
  CHECK(rehearsals_of("tiny-sigma", 2) == 2);
  CHECK(rehearsals_of("tiny-pixart", 3) == 0);
  ++stage.flushes;
  for (const auto* model : {"tiny-pixart", "tiny-sigma"}) {
    CHECK(rehearsals_of(model, 4) == 2);
    CHECK(rehearsals_of(model, 5) == 0);
  }
  // Where that comes in the midst of one it is done again, and others' are gone.
  const auto steps = stage.count(WorkEvent::rehearses_whole);
  auto other = RehearsedActors::spec(6);
  other.request.num_pipeline_patch = 3;
  CHECK(stage.result(stage.submit(other)).size() > 1000);
  const auto plain = stage.count(WorkEvent::rehearses_whole) - steps;
  stage.flush_in_midst = true;
  other.request.num_pipeline_patch = 4;
  CHECK(stage.result(stage.submit(other)).size() > 1000);
  CHECK(stage.count(WorkEvent::rehearses_whole) - steps - plain >= 2 * plain);
  stage.flush_in_midst = false;
  CHECK(rehearsals_of("tiny-sigma", 7) == 2);
}

TEST_CASE("jobs that begin beside one that runs are rehearsed in its midst, and no bit changes") {
  const auto all = [](bool rehearses) {
    RehearsedActors stage({.rehearses = rehearses});
    std::vector<jobs::JobId> ids;
    for (const int patches : {2, 3, 4}) {
      auto spec = RehearsedActors::spec(static_cast<std::uint64_t>(patches));
      spec.request.num_pipeline_patch = patches;
      spec.request.kv = patches == 3 ? KvUse::predict : KvUse::stale;
      ids.push_back(stage.submit(spec));
    }
    std::vector<std::string> results;
    for (const auto id : ids)
      results.push_back(stage.result(id));
    CHECK(stage.count(WorkEvent::rehearsed) == (rehearses ? 6 : 0));
    return results;
  };
  const auto results = all(true);
  CHECK(results == all(false));
  for (const auto& result : results)
    CHECK(result.size() > 1000);
}

TEST_CASE("jobs of one shape have one key, whatever their words, seeds and numbers of steps") {
  wire::BeginJob begin;
  begin.request = RehearsedActors::spec(1).request;
  begin.request.guidance_scale = 4.5;
  const auto model = spec::read_model_spec(test::kFixtures + "tiny-pixart");
  const auto key = [&] { return actors::rehearsal_key(begin, model); };
  const auto first = key();
  begin.job = 7;
  begin.epoch = 3;
  begin.request.seed = 9;
  begin.request.prompts = {"a blue square"};
  begin.request.negative_prompt = "blurred";
  begin.request.guidance_scale = 7;
  begin.request.steps = 50;
  begin.first_step = 4;
  CHECK(key() == first);
  const auto differs = [&](const std::function<void(wire::ImageRequest&)>& change) {
    const auto kept = begin.request;
    change(begin.request);
    CHECK(key() != first);
    begin.request = kept;
  };
  differs([](auto& request) { request.width += 8; });
  differs([](auto& request) { request.prompts.push_back("another"); });
  differs([](auto& request) { request.guidance_scale = 1; });
  differs([](auto& request) { request.num_pipeline_patch = 3; });
  differs([](auto& request) { request.kv = KvUse::predict; });
  differs([](auto& request) { request.refill_steps = {5}; });
  differs([](auto& request) { request.steps = 2; });
}

TEST_CASE("tasks end when their device has done them, and a device that hangs ends none") {
  std::string want;
  std::size_t ends = 0;
  {
    RehearsedActors plain({});
    want = plain.result(plain.submit(RehearsedActors::spec(5)));
    ends = plain.ran.size();
  }
  RehearsedActors late({.late = true});
  CHECK(late.result(late.submit(RehearsedActors::spec(5))) == want);
  CHECK(late.ran.size() == ends);
  for (const auto& span : late.ran)
    CHECK(span.end_ns >= span.begin_ns);
  CHECK(late.clocks[0]->marks > 10);

  for (const auto& clock : late.clocks)
    clock->hangs = true;
  const auto ended = late.ran.size();
  const auto hanging = late.submit(RehearsedActors::spec(5));
  const auto soon = control::Clock::now() + std::chrono::milliseconds(500);
  late.until([&] { return control::Clock::now() > soon; });
  CHECK(late.ran.size() == ended);  // its tasks lie on the device
  CHECK_FALSE(has_ended(late.table.find(hanging)->state));
  for (const auto& clock : late.clocks)
    clock->hangs = false;
  CHECK(late.result(hanging) == want);
}
