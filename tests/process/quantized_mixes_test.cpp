#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/process/quantized_latents.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/lora_twins.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// int8 weights together with LoRAs, with replicas, and of videos.

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kVideoDecibels = 45;  // of the final latents, tests/fixtures/tiny-wan

const std::vector<std::string> kFamilies = {"sigma", "sd3", "sd35", "flux", "hunyuan", "wan"};

/// Decibels of the expected values' own range.
double psnr(const Latents& actual, const Latents& expected) {
  const auto [low, high] = std::minmax_element(expected.data.begin(), expected.data.end());
  return 20 * std::log10((double(*high) - double(*low)) / distance(actual, expected));
}

}  // namespace

TEST_CASE("int8 weights with a LoRA are those of the sum, to the bit, on any shard") {
  Reference reference("quantized");
  struct Way {
    Parallelism mix;
    std::string dtype;
  };
  const std::vector<Way> ways = {
      {{}, "float32"}, {{.pp = 2, .tp = 2}, "float32"}, {{.tp = 3}, "bfloat16"}};
  for (const auto& family : kFamilies) {
    const LoraTwins twins("tiny-" + family);
    auto with = quantized(reference.submission(reference.find(family + "_one_step")));
    const auto bare = latents_of(with);
    auto merged = with;
    with.request.loras = {twins.lora()};
    merged.model = twins.merged();
    for (const auto& way : ways) {
      CAPTURE(family + " at " + name_of(way.mix) + " in " + way.dtype);
      with.parallelism = merged.parallelism = way.mix;
      with.request.dtype = merged.request.dtype = way.dtype;
      const auto got = latents_of(with);
      CHECK(same_bits(got, latents_of(merged)));
      CHECK(range_error(got, bare) > 1e-3);
    }
  }
}

TEST_CASE("int8 pictures of several replicas are one actor's") {
  Reference reference("quantized");
  const std::vector<Parallelism> mixes = {{.dp = 2}, {.dp = 4}, {.dp = 2, .tp = 2}};
  Worst moved;
  for (const auto& family : kFamilies) {
    auto submission = reference.submission(reference.find(family + "_one_step"));
    submission.request.prompts = {"a cat", "a red circle"};
    submission.request.images_per_prompt = 2;
    const auto plain = latents_of(submission);
    submission = quantized(submission);
    const auto single = latents_of(submission);
    const double lost = distance(single, plain);
    CHECK(lost > 0);
    for (const auto& mix : mixes) {
      const auto where = family + " at " + name_of(mix);
      CAPTURE(where);
      submission.parallelism = mix;
      const auto got = latents_of(submission);
      const double part = distance(got, single) / lost;
      if (family == "sigma") CHECK(same_bits(got, single));
      // Wan's norm runs across heads.
      CHECK(part <= (family == "wan" && mix.tp > 1 ? kApart : kOneStep));
      moved.see(part, where);
    }
  }
  MESSAGE(moved.seen << " mixes at most " << moved.value << " of what int8 changes apart ("
                     << moved.where << ")");
}

TEST_CASE("int8 videos are near to float32's, whole and by patches") {
  Reference reference("wan");
  struct Way {
    std::string method;
    int patches;
  };
  double least = 1e9;
  Worst moved;
  for (const Way& way : {Way{"exact", 1}, Way{"pipefusion", 3}, Way{"distrifusion", 3}}) {
    CAPTURE(way.method);
    auto submission = reference.submission(reference.find("wan_plain"));
    submission.request.method = way.method;
    submission.request.num_pipeline_patch = way.patches;
    const auto plain = latents_of(submission);
    submission = quantized(submission);
    const auto single = latents_of(submission);
    const double decibels = psnr(single, plain);
    CHECK(decibels >= kVideoDecibels);
    least = std::min(least, decibels);
    for (const auto& mix : {Parallelism{.pp = 2, .tp = 2}, Parallelism{.cfg = 2, .ulysses = 3}}) {
      const auto where = way.method + " at " + name_of(mix);
      CAPTURE(where);
      submission.parallelism = mix;
      const double part = distance(latents_of(submission), single) / distance(single, plain);
      CHECK(part <= kApart);
      moved.see(part, where);
    }
  }
  MESSAGE("at least " << least << " dB; other degrees at most " << moved.value
                      << " of what int8 changes away (" << moved.where << ")");
}
