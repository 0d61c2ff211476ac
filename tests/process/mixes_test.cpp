#include <algorithm>
#include <set>

#include "tests/process/support/compare.h"
#include "tests/process/support/five_pictures.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

constexpr double kMixBound = 1e-4;  // of the single actor's range
constexpr int kActors = 8;

std::vector<Parallelism> mixes() {
  std::vector<Parallelism> all;
  for (int dp = 1; dp <= 3; ++dp) {
    for (int cfg = 1; cfg <= 2; ++cfg) {
      for (int pp = 1; pp <= 4; ++pp) {
        if (dp * cfg * pp <= kActors) all.push_back({.dp = dp, .cfg = cfg, .pp = pp});
      }
    }
  }
  return all;
}

void check_report(const json& report, const Submission& submission) {
  const auto& degrees = submission.parallelism;
  const auto world = static_cast<std::size_t>(degrees.dp * degrees.cfg * degrees.pp);
  CHECK(report.at("seed") == submission.request.seed);
  CHECK(report.at("request").at("prompts") == json(submission.request.prompts));
  const auto& plan = report.at("plan");
  CHECK(plan.at("mesh") == json{{"world", world},
                                {"dp", degrees.dp},
                                {"cfg", degrees.cfg},
                                {"pp", degrees.pp},
                                {"ulysses", degrees.ulysses},
                                {"ring", degrees.ring},
                                {"tp", degrees.tp}});
  CHECK(plan.at("stages").size() == static_cast<std::size_t>(degrees.pp));
  double phases = 0;
  for (const std::string phase : {"queued", "loading", "text", "denoising", "decoding"}) {
    CAPTURE(phase);
    const double seconds = report.at("seconds").at(phase);
    CHECK(seconds >= 0);
    phases += seconds;
  }
  const auto& seconds = report.at("seconds");
  CHECK(seconds.at("denoising").get<double>() > 0);
  CHECK(seconds.at("per_step").get<double>() ==
        doctest::Approx(seconds.at("denoising").get<double>() / submission.request.steps));
  CHECK(seconds.at("total").get<double>() >= phases - 1e-6);
  REQUIRE(report.at("actors").size() == world);
  std::set<int> ids;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const auto& actor = report.at("actors")[rank];
    CAPTURE(actor.dump());
    CHECK(actor.at("rank") == rank);
    ids.insert(actor.at("actor").get<int>());
    for (const std::string field : {"waiting_seconds", "controller_wait_seconds", "idle_seconds"}) {
      CHECK(actor.at(field).get<double>() >= 0);
    }
    CHECK(actor.at("busy_seconds").get<double>() > 0);
    CHECK(actor.at("denoise_seconds").get<double>() > 0);
    CHECK(actor.at("weight_bytes").get<std::uint64_t>() > 0);
    CHECK(actor.at("kv_bytes").get<std::uint64_t>() > 0);
    CHECK(actor.at("peak_memory_bytes").get<std::uint64_t>() > 1'000'000);
    sent += actor.at("tensor_bytes_sent").get<std::uint64_t>();
    received += actor.at("tensor_bytes_received").get<std::uint64_t>();
  }
  CHECK(ids.size() == world);
  const auto& bytes = report.at("bytes");
  CHECK(bytes.at("tensor_plane") == sent);
  CHECK(sent == received);
  CHECK((sent > 0) == (world > static_cast<std::size_t>(degrees.dp)));
  CHECK(bytes.at("control_plane").get<std::uint64_t>() > 0);
  CHECK(bytes.at("blobs").get<std::uint64_t>() > 0);
}

}  // namespace

TEST_CASE("every exact mix makes the single actor's pictures, in the order of the prompts") {
  auto submission = five_pictures();
  const auto single = shared_cluster().run(submission);
  std::vector<Bytes> pictures;
  for (const auto& picture : single.pictures)
    pictures.push_back(decode_png(picture.png));
  REQUIRE(pictures.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < i; ++j)
      REQUIRE(level_error(pictures[i], pictures[j]) > 8);
  }
  Worst latents;
  Worst levels;
  for (const auto& degrees : mixes()) {
    const auto name = name_of(degrees);
    CAPTURE(name);
    submission.parallelism = degrees;
    const auto result = shared_cluster().run(submission);
    const double error = range_error(result.latents.value(), single.latents.value());
    CHECK(error <= kMixBound);
    latents.see(error, name);
    REQUIRE(result.pictures.size() == 5);
    for (std::size_t i = 0; i < 5; ++i) {
      const auto& png = result.pictures[i].png;
      const int level = level_error(decode_png(png), pictures[i]);
      CHECK(level <= 1);
      levels.see(level, name);
      const auto text = json::parse(png_text(png, "troupe"));
      CHECK(text.at("prompt") == submission.request.prompts[i]);
      CHECK(text.at("image") == i);
    }
    check_report(json::parse(result.report), submission);
  }
  MESSAGE("exact: " << latents.seen << " mixes, latents within " << latents.value << " of range ("
                    << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("several pictures of each prompt are prompt-major whatever the degree") {
  Reference reference("pipeline");
  const auto& of = reference.find("two_by_two");
  const auto expected = reference.floats(of, "latents");
  for (const Parallelism& degrees :
       {Parallelism{}, Parallelism{.dp = 2}, Parallelism{.dp = 3}, Parallelism{.dp = 4},
        Parallelism{.dp = 2, .cfg = 2, .pp = 2}}) {
    CAPTURE(name_of(degrees));
    const auto result = shared_cluster().run(reference.submission(of, degrees));
    CHECK(range_error(result.latents.value(), expected) <= kMixBound);
    REQUIRE(result.pictures.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const auto picture = picture_of(reference.bytes(of, "image"), static_cast<std::int64_t>(i));
      CHECK(level_error(decode_png(result.pictures[i].png), picture) <= 1);
      const auto text = json::parse(png_text(result.pictures[i].png, "troupe"));
      CHECK(text.at("prompt") == of.at("prompts")[i / 2]);
    }
  }
}

TEST_CASE("without guidance, and with micro-conditions, in stages too") {
  Reference reference("pipeline");
  for (const std::string name : {"no_guidance", "ms", "ms_uneven", "long_prompt", "third_order"}) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    const auto expected = reference.floats(of, "latents");
    const int cfg = of.at("guidance").get<double>() > 1 ? 2 : 1;
    // The fixture with micro-conditions may have fewer blocks, but no less than two.
    const auto result =
        shared_cluster().run(reference.submission(of, {.dp = 1, .cfg = cfg, .pp = 2}));
    CHECK(range_error(result.latents.value(), expected) <= kMixBound);
  }
}

TEST_CASE("degrees that do not fit are refused before anything loads") {
  auto submission = one_picture({.dp = 1, .cfg = 2, .pp = 1});
  submission.request.guidance_scale = 1;
  CHECK(shared_cluster().refusal(submission).what.find("`cfg` is 2") != std::string::npos);
  submission = one_picture({.dp = 2});
  CHECK(shared_cluster().refusal(submission).what.find("`dp` is 2") != std::string::npos);
  submission = one_picture({.dp = 1, .cfg = 1, .pp = 6});
  CHECK(shared_cluster().refusal(submission).what.find("6") != std::string::npos);
  submission = five_pictures();
  submission.parallelism = {.dp = 5, .cfg = 2, .pp = 1};
  CHECK(shared_cluster().refusal(submission).what.find("10") != std::string::npos);
}

TEST_CASE("jobs of different degrees run side by side and one after another") {
  const auto expected = shared_cluster().run(one_picture({})).latents.value();
  std::vector<std::uint64_t> jobs;
  for (int i = 0; i < 12; ++i) {
    const Parallelism degrees = {.dp = 1, .cfg = 1 + i % 2, .pp = 1 + i % 3};
    const auto job = shared_cluster().client().submit(one_picture(degrees));
    REQUIRE(job.ok());
    jobs.push_back(job.value());
  }
  for (const auto job : jobs) {
    const auto result = shared_cluster().client().wait(job, std::chrono::seconds(600));
    REQUIRE_MESSAGE(result.ok(), result.error().what);
    CHECK(range_error(result.value().latents.value(), expected) <= kMixBound);
  }
}
