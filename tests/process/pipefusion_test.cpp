#include <fstream>
#include <map>

#include "tests/process/support/company.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kLatentBound = 1e-4;  // of the oracle's range

int blocks_of(const std::string& checkpoint_name) {
  const auto file = checkpoint(checkpoint_name) + "/transformer/config.json";
  return nlohmann::json::parse(std::ifstream(file)).at("num_layers");
}

}  // namespace

TEST_CASE("pipefusion equals the oracle, whatever the number of stages and branches' actors") {
  Reference reference("pipefusion");
  std::map<std::string, Latents> single;  // what one actor makes of each case
  Worst from_oracle;
  Worst from_single;
  Worst levels;
  std::map<std::string, std::vector<Bytes>> pictures;
  for (const int cfg : {1, 2}) {
    for (const int pp : {1, 2, 3, 4}) {
      const Parallelism degrees = {.dp = 1, .cfg = cfg, .pp = pp};
      for (const auto& of : reference.cases()) {
        const std::string name = of.at("name");
        if (cfg == 2 && of.at("guidance").get<double>() <= 1) continue;
        if (pp > blocks_of(of.at("checkpoint"))) continue;
        const auto where = name + " at " + name_of(degrees);
        CAPTURE(where);
        const auto result = company().run(reference.submission(of, degrees));
        const auto& latents = result.latents.value();
        const double error = range_error(latents, reference.floats(of, "latents"));
        CHECK(error <= kLatentBound);
        from_oracle.see(error, where);
        std::vector<Bytes> own;
        for (const auto& picture : result.pictures)
          own.push_back(decode_png(picture.png));
        const bool is_single = cfg == 1 && pp == 1;
        if (is_single) {
          single[name] = latents;
          pictures[name] = own;
          continue;
        }
        const double distance = range_error(latents, single.at(name));
        CHECK(distance <= 1e-5);
        from_single.see(distance, where);
        REQUIRE(own.size() == pictures.at(name).size());
        for (std::size_t i = 0; i < own.size(); ++i) {
          const int level = level_error(own[i], pictures.at(name)[i]);
          CHECK(level <= 1);
          levels.see(level, where);
        }
      }
    }
  }
  CHECK(from_oracle.seen > 150);
  MESSAGE("pipefusion: " << from_oracle.seen << " runs, within " << from_oracle.value
                         << " of range of the oracle (" << from_oracle.where << "); "
                         << from_single.seen << " at other degrees within " << from_single.value
                         << " of the single actor's latents (" << from_single.where
                         << ") and within " << levels.value << " levels of its pictures");
}

TEST_CASE("the oracle's cases tell stale from synchronous") {
  Reference reference("pipefusion");
  for (const std::string name : {"m2_k0", "m4_k1", "seven_rows_m3_k0", "two_prompts_m3_k1"}) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.dp = 1, .cfg = 1, .pp = 2});
    submission.request.method = "exact";
    submission.request.num_pipeline_patch = 1;
    const auto exact = company().run(submission).latents.value();
    const double drift = range_error(exact, reference.floats(of, "latents"));
    CHECK(drift > 10 * kLatentBound);
    CHECK(drift < 0.5);
  }
}

TEST_CASE("replicas of pipefusion make the pictures of one") {
  Reference reference("pipefusion");
  const auto& of = reference.find("two_prompts_m3_k1");
  const auto expected = reference.floats(of, "latents");
  for (const Parallelism degrees :
       {Parallelism{.dp = 3}, Parallelism{.dp = 2, .cfg = 2, .pp = 2},
        Parallelism{.dp = 2, .cfg = 1, .pp = 4}, Parallelism{.dp = 4, .cfg = 2, .pp = 1}}) {
    CAPTURE(name_of(degrees));
    const auto result = company().run(reference.submission(of, degrees));
    CHECK(range_error(result.latents.value(), expected) <= kLatentBound);
    CHECK(result.pictures.size() == 4);
  }
}

TEST_CASE("the same request makes the same bits again") {
  Reference reference("pipefusion");
  const auto submission =
      reference.submission(reference.find("seven_rows_m4_k1"), {.dp = 1, .cfg = 2, .pp = 4});
  const auto first = company().run(submission).latents.value();
  for (int i = 0; i < 10; ++i) {
    CHECK(company().run(submission).latents.value().data == first.data);
  }
}

TEST_CASE("patches that cannot be are refused") {
  Reference reference("pipefusion");
  auto submission = reference.submission(reference.find("m4_k1"));
  submission.request.num_pipeline_patch = 5;  // of 4 token rows
  const auto rows = company().refusal(submission);
  CAPTURE(rows.what);
  CHECK(rows.code == "bad_request");
  CHECK(rows.what.find("5") != std::string::npos);
  submission.request.num_pipeline_patch = 4;
  submission.request.warmup_steps = 9;
  CHECK(company().refusal(submission).what.find("warmup") != std::string::npos);
  submission.request.warmup_steps = 1;
  submission.request.method = "exact";
  CHECK(company().refusal(submission).what.find("pipefusion") != std::string::npos);
}
