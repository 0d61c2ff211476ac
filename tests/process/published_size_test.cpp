// A model of PixArt-XL's size with a T5 of XXL's shapes, in bfloat16, on two actors. On demand: see
// scripts/published-size.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "models/spec/model_spec.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

constexpr double kGigabyte = 1e9;

/// Memory that an actor holds in a phase of the job.
struct Held {
  double first = -1;    // resident at the first look
  double most = 0;      // resident, its own pages and those of mapped files
  double most_own = 0;  // without the mapped files, which the kernel takes back when it needs to
};

/// Looks at the actors' resident sets all the while.
class MemoryWatch {
 public:
  explicit MemoryWatch(std::vector<std::uint32_t> pids)
      : pids_(std::move(pids)), thread_([this] { watch(); }) {}
  ~MemoryWatch() { stop(); }

  void enter(const std::string& phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Held held(std::size_t actor, const std::string& phase) {
    const std::lock_guard lock(mutex_);
    return seen_[phase][actor];
  }

 private:
  void watch() {
    while (!stopping_) {
      for (std::size_t i = 0; i < pids_.size(); ++i) {
        const double resident = status_bytes(pids_[i], "VmRSS");
        const double own = status_bytes(pids_[i], "RssAnon") + status_bytes(pids_[i], "RssShmem");
        const std::lock_guard lock(mutex_);
        auto& held = seen_[phase_][i];
        if (held.first < 0) held.first = resident;
        held.most = std::max(held.most, resident);
        held.most_own = std::max(held.most_own, own);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  std::vector<std::uint32_t> pids_;
  std::mutex mutex_;
  std::string phase_ = "start";
  std::map<std::string, std::map<std::size_t, Held>> seen_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("PixArt-XL's size with T5-XXL's shapes: two steps at 512 px on two actors") {
  const char* folder = std::getenv("TROUPE_PUBLISHED_SIZE_MODEL");
  REQUIRE_MESSAGE(folder != nullptr, "TROUPE_PUBLISHED_SIZE_MODEL names no folder");
  const auto weights = spec::weight_bytes(spec::read_model_spec(folder));
  Submission submission;
  submission.model = folder;
  submission.parallelism = {.dp = 1, .cfg = 1, .pp = 2};
  auto& request = submission.request;
  request.prompts = {"a red circle above a blue square on a white background"};
  request.height = request.width = 512;
  request.steps = 2;
  request.dtype = "bfloat16";
  request.method = "pipefusion";
  request.num_pipeline_patch = 4;
  request.warmup_steps = 1;
  request.want_latents = true;
  // No room for a text encoder that stays.
  SharedCluster two(2, memory_of(submission));
  std::vector<std::uint32_t> pids;
  const auto status = two.client().status();
  REQUIRE(status.ok());
  for (const auto& actor : status.value().actors)
    pids.push_back(actor.pid);
  MemoryWatch watch(pids);
  const auto result = two.run(
      submission, [&](const Progress& progress) { watch.enter(to_string(progress.phase)); },
      std::chrono::minutes(45));
  watch.stop();

  for (const float value : result.latents.value().data)
    REQUIRE(std::isfinite(value));
  CHECK(decode_png(result.pictures.at(0).png).shape == std::vector<std::int64_t>{512, 512, 3});
  const auto report = json::parse(result.report);
  MESSAGE("seconds " << report.at("seconds").dump());
  std::uint64_t stages = 0;
  for (const auto& actor : report.at("actors")) {
    stages += actor.at("weight_bytes").get<std::uint64_t>();
    MESSAGE("actor " << actor.at("actor") << ": weights "
                     << actor.at("weight_bytes").get<double>() / kGigabyte << " GB, peak "
                     << actor.at("peak_memory_bytes").get<double>() / kGigabyte << " GB, busy "
                     << actor.at("busy_seconds") << " s, waiting " << actor.at("waiting_seconds")
                     << " s");
  }
  for (std::size_t i = 0; i < pids.size(); ++i) {
    for (const std::string phase : {"loading", "text", "denoising", "decoding"}) {
      const auto held = watch.held(i, phase);
      MESSAGE("actor " << i + 1 << " " << phase << ": resident at first " << held.first / kGigabyte
                       << " GB, at most " << held.most / kGigabyte << " GB, its own "
                       << held.most_own / kGigabyte << " GB");
    }
    // A stage's weights, and room for one decoder: nothing like the text encoder's nine gigabytes.
    CHECK(watch.held(i, "denoising").most < 3 * kGigabyte);
    CHECK(watch.held(i, "denoising").most < double(weights.text_encoder) / 3);
  }
  MESSAGE("text encoder " << double(weights.text_encoder) / kGigabyte << " GB, its largest part "
                          << double(weights.text_encoder_peak) / kGigabyte << " GB");
  // Each block lies at one of the two actors; only what every stage needs lies at both.
  const auto once = double(weights.embed + weights.shared + weights.final);
  double blocks = 0;
  for (const auto bytes : weights.blocks)
    blocks += double(bytes);
  CHECK(double(stages) >= blocks);
  CHECK(double(stages) <= (blocks + 2 * once) * 1.05);
}
