#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kInpaintBound = 1e-5;  // of the reference's range

}  // namespace

TEST_CASE("pictures of U-Nets trained for inpainting are those of their pipelines in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("unet_inpaint");
  Worst latents, levels;
  check_pictures(reference, kInpaintBound, latents, levels);
  CHECK(latents.seen == 10);
  CHECK(levels.seen == 2);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("U-Nets trained for inpainting make one picture at any degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("unet_inpaint");
  const Parallelism mixes[] = {{.ulysses = 2},
                               {.cfg = 2, .ring = 3},
                               {.dp = 2, .cfg = 2, .vae = 2},
                               {.cfg = 2, .ulysses = 2, .ring = 2, .vae = 3}};
  Worst worst;
  for (const char* name : {"sd15_noisy", "sdxl_weak", "sdxl_noisy_weak"}) {
    for (const auto& mix : mixes) {
      const auto where = std::string(name) + " at " + name_of(mix);
      CAPTURE(where);
      const auto& of = reference.find(name);
      const auto submission = reference.submission(of, mix);
      const Foreseen foreseen(submission);
      const auto result = shared_cluster().run(submission);
      const double error = range_error(result.latents.value(), reference.floats(of, "latents"));
      CHECK(error <= kInpaintBound);
      worst.see(error, where);
      check_sent(nlohmann::json::parse(result.report), foreseen);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("U-Nets trained for inpainting by patches equal the oracle") {
  if (lacks_made_fixtures()) return;
  Reference reference("unet_inpaint_patches");
  Worst worst;
  for (const auto& of : reference.cases()) {
    const int patches = of.at("patches");
    for (const auto& mix : {Parallelism{}, Parallelism{.cfg = 2, .ring = patches}}) {
      const auto where = of.at("name").get<std::string>() + " at " + name_of(mix);
      CAPTURE(where);
      const auto got = shared_cluster().run(reference.submission(of, mix)).latents.value();
      const double error = range_error(got, reference.floats(of, "latents"));
      CHECK(error <= kOracleBound);
      worst.see(error, where);
    }
  }
  CHECK(worst.seen == 20);
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("U-Nets trained for inpainting need a picture and its mask") {
  if (lacks_made_fixtures()) return;
  Reference reference("unet_inpaint");
  auto submission = reference.submission(reference.find("sd15_plain"));
  submission.request.mask_image.clear();
  CHECK(has(shared_cluster().refusal(submission).what,
            "`mask_image` is missing: StableDiffusionInpaintPipeline paints within the mask"));
}
