#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kFrameBound = 1e-5;  // of the reference's range

/// A book of whole videos, the case that goes to several actors, and how many it has.
struct FrameBook {
  const char* name;
  std::vector<std::string> cases;
  std::size_t videos, shown;
};

const FrameBook kBooks[] = {{"ti2v", {"ti2v_plain"}, 7, 7},
                            {"i2v_a14b", {"a14b_last"}, 5, 6},
                            {"i2v", {"i2v_plain", "flf_plain"}, 5, 2}};

}  // namespace

TEST_CASE("videos from a first frame, and to a last one, are those of diffusers' pipelines") {
  if (lacks_made_fixtures()) return;
  Worst latents, levels;
  for (const auto& book : kBooks) {
    CAPTURE(book.name);
    Reference reference(book.name);
    Worst own, shown;
    check_pictures(reference, kFrameBound, own, shown);
    CHECK(own.seen == book.videos);
    CHECK(shown.seen == book.shown);
    latents.see(own.value, own.where);
    levels.see(shown.value, shown.where);
  }
  MESSAGE("latents within " << latents.value << " of range (" << latents.where
                            << "), videos within " << levels.value << " levels");
}

TEST_CASE("a video with given frames is the same at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 3},
                                          {.ulysses = 3},
                                          {.ring = 2},
                                          {.tp = 2},
                                          {.dp = 2, .pp = 2},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  for (const auto& book : kBooks) {
    Reference reference(book.name);
    for (const auto& name : book.cases)
      check_degrees(reference, name, mixes, worst);
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("patches of videos with given frames are the oracle's") {
  if (lacks_made_fixtures()) return;
  Worst worst;
  for (const char* book : {"ti2v_patches", "i2v_a14b_patches", "flf_patches"}) {
    Reference reference(book);
    check_oracle(reference, worst);
  }
  CHECK(worst.seen == 16);
  MESSAGE("within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("any number of actors encodes given frames, and plans know what they hold and send") {
  if (lacks_made_fixtures()) return;
  for (const auto& book : kBooks) {
    Reference reference(book.name);
    for (const auto& name : book.cases) {
      const auto& of = reference.find(name);
      for (const int vae : {2, 3}) {
        CAPTURE(name + " by " + std::to_string(vae));
        const auto submission = reference.submission(of, {.pp = 3, .vae = vae});
        const Foreseen foreseen(submission);
        const auto result = shared_cluster().run(submission);
        CHECK(range_error(result.latents.value(), reference.floats(of, "latents")) <= kFrameBound);
        CHECK(level_error(tall_picture(result.pictures.at(0).png),
                          picture_of(reference.bytes(of, "image"), 0)) <= kLevelBound);
        check_sent(nlohmann::json::parse(result.report), foreseen);
      }
      check_foreseen(reference, name);
    }
  }
}

TEST_CASE("half precision of videos with given frames stays near diffusers' float32") {
  if (lacks_made_fixtures()) return;
  Worst worst;
  for (const auto& book : kBooks) {
    Reference reference(book.name);
    for (const auto& name : book.cases)
      check_half(reference, name, "bfloat16", 0.05, worst);
  }
  MESSAGE("within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("kill -9 of an actor leaves a video with given frames as it is, to the bit") {
  if (lacks_made_fixtures()) return;
  for (const auto& book : kBooks) {
    Reference reference(book.name);
    for (const auto& name : book.cases) {
      CAPTURE(name);
      const auto job = reference.submission(reference.find(name), {.pp = 2});
      FaultCluster cluster(actors(2));
      const auto undisturbed = cluster.run(job);
      const auto result =
          cluster.struck(job, 2, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
      CHECK(result.latents->data == undisturbed.latents->data);
    }
  }
}

TEST_CASE("frames that a model does not take, and those that it lacks, are refused by name") {
  if (lacks_made_fixtures()) return;
  const auto refusal = [](const char* book, const char* name, auto change) {
    Reference reference(book);
    auto submission = reference.submission(reference.find(name));
    change(submission.request);
    return shared_cluster().refusal(submission).what;
  };
  const auto drop = [](auto& of) { of.images.clear(), of.last_image.clear(); };
  CHECK(refusal("i2v_a14b", "a14b_plain", drop).find("makes a video from its first frame") !=
        std::string::npos);
  CHECK(refusal("i2v", "flf_plain", [](auto& of) {
          of.last_image.clear();
        }).find("`last_image` is missing") != std::string::npos);
  for (const auto& [book, name] : {std::pair("ti2v", "ti2v_plain"), {"i2v", "i2v_plain"}})
    CHECK(refusal(book, name, [](auto& of) {
            of.last_image = of.images[0];
          }).find("takes no last frame") != std::string::npos);
  CHECK(refusal("ti2v", "ti2v_plain", [](auto& of) {
          of.images.push_back(of.images[0]);
        }).find("takes 1 at most") != std::string::npos);
  CHECK(refusal("i2v", "i2v_plain", [](auto& of) { of.max_sequence_length = 64; }).find("512") !=
        std::string::npos);
}
