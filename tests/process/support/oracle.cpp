#include "tests/process/support/oracle.h"

#include <fstream>
#include <optional>

#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

namespace troupe::testing {
namespace {

constexpr double kDegreesBound = 1e-5;  // of the range of the single actor's latents

int blocks_of(const std::string& checkpoint_name) {
  const auto file = checkpoint(checkpoint_name) + "/transformer/config.json";
  return nlohmann::json::parse(std::ifstream(file)).at("num_layers");
}

bool can_run(const nlohmann::json& of, const Parallelism& degrees) {
  if (degrees.cfg == 2 && of.at("guidance").get<double>() <= 1) return false;
  return degrees.pp <= blocks_of(of.at("checkpoint"));
}

struct Outcome {
  Latents latents;
  std::vector<Bytes> pictures;
};

Outcome run(Reference& reference, const nlohmann::json& of, const Parallelism& degrees) {
  const auto result = shared_cluster().run(reference.submission(of, degrees));
  Outcome out{.latents = result.latents.value(), .pictures = {}};
  for (const auto& picture : result.pictures)
    out.pictures.push_back(decode_png(picture.png));
  return out;
}

}  // namespace

int check_against_oracle(Reference& reference, const std::vector<Parallelism>& degrees,
                         std::size_t every) {
  Worst from_oracle;
  Worst from_single;
  Worst levels;
  std::size_t offset = 0;
  for (const auto& of : reference.cases()) {
    ++offset;
    const auto expected = reference.floats(of, "latents");
    std::optional<Outcome> single;
    for (std::size_t i = 0; i < degrees.size(); ++i) {
      const auto& at = degrees[i];
      if (!can_run(of, at) || (i > 0 && (i + offset) % every != 0)) continue;
      const auto where = of.at("name").get<std::string>() + " at " + name_of(at);
      CAPTURE(where);
      const auto outcome = run(reference, of, at);
      const double error = range_error(outcome.latents, expected);
      CHECK(error <= kOracleBound);
      from_oracle.see(error, where);
      if (!single) {
        single = outcome;
        continue;
      }
      const double distance = range_error(outcome.latents, single->latents);
      CHECK(distance <= kDegreesBound);
      from_single.see(distance, where);
      REQUIRE(outcome.pictures.size() == single->pictures.size());
      for (std::size_t i = 0; i < outcome.pictures.size(); ++i) {
        const int level = level_error(outcome.pictures[i], single->pictures[i]);
        CHECK(level <= 1);
        levels.see(level, where);
      }
    }
  }
  MESSAGE(from_oracle.seen << " runs within " << from_oracle.value << " of range of the oracle ("
                           << from_oracle.where << "); " << from_single.seen
                           << " at other degrees within " << from_single.value
                           << " of the single actor's latents (" << from_single.where
                           << ") and within " << levels.value << " levels of its pictures");
  return from_oracle.seen;
}

Latents latents_with(Reference& reference, const nlohmann::json& of,
                     void (*changes)(ImageRequest&)) {
  auto submission = reference.submission(of);
  changes(submission.request);
  return shared_cluster().run(submission).latents.value();
}

}  // namespace troupe::testing
