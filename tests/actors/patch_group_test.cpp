#include "actors/parallel/patch_group.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "tests/actors/mesh_groups.h"
#include "tests/models/unet_run.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"
#include "tests/tensor/ranks.h"

using namespace std::chrono_literals;
using namespace troupe;
using actors::PatchGroup;
using actors::testing::wait_long;
using models::testing::kNormModes;
using models::testing::kSteps;
using models::testing::UNetBook;
using models::testing::UNetRun;
using models::unet::LocalExchange;
using models::unet::NormMode;
using models::unet::PatchCuts;
using models::unet::Site;
using models::unet::StepMode;
using tensor::testing::Member;
using tensor::testing::on_ranks;
using tensor::testing::require;

TEST_CASE("a U-Net's patches over a group give what they give in one process") {
  const at::NoGradGuard no_grad;
  const models::testing::OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  double worst = 0;
  for (const size_t index : {0, 3}) {
    const UNetRun one(book, book.content["cases"][index]);
    for (const auto& [key, norm] : kNormModes) {
      LocalExchange local(one.patches);
      const auto expected = one.run(local, norm, StepMode::stale, one.warmup);
      for (const auto backend : tensor::testing::cpu_backends()) {
        for (int size = 1; size <= one.patches; ++size) {
          // All in one batch, a batch for each layer, and something between.
          for (const std::int64_t bytes : {1, 5000, 1 << 20}) {
            if (bytes != 5000 && (size != 2 || key != "corrected")) continue;
            if (backend != tensor::Backend::shm && key != "corrected") continue;
            CAPTURE(one.name);
            CAPTURE(key);
            CAPTURE(size);
            CAPTURE(bytes);
            std::vector<at::Tensor> parts(size);
            std::vector<int> batches(size);
            on_ranks(backend, size, [&, norm = norm](Member& member) {
              const at::NoGradGuard no_grad_here;
              PatchGroup exchange(member.group, one.cuts, one.in.latents.size(3), wait_long, bytes);
              parts[member.rank] = one.run(exchange, norm, StepMode::stale, one.warmup);
              batches[member.rank] = exchange.batches();
            });
            const auto found = at::cat(parts, 2);
            const double error = models::testing::relative_error(found, expected);
            worst = std::max(worst, error);
            CHECK(error < 1e-6);
            for (const int count : batches)
              CHECK(count == batches.front());
            if (size == 1) CHECK(batches.front() == 0);
            if (size == 2 && bytes == 1) CHECK(batches.front() > 30);
            if (size == 2 && bytes == 1 << 20) CHECK(batches.front() == 1);
          }
        }
      }
    }
  }
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE(
    "what a rank sends is told by kind of layer, and a frozen step sends latents' rows only") {
  const at::NoGradGuard no_grad;
  const models::testing::OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  const UNetRun one(book, book.content["cases"][0]);
  const auto sent = [&](StepMode mode, int synchronous) {
    std::map<Site::Kind, std::uint64_t> result;
    on_ranks(tensor::Backend::shm, 3, [&](Member& member) {
      const at::NoGradGuard no_grad_here;
      PatchGroup exchange(member.group, one.cuts, one.in.latents.size(3), wait_long);
      one.run(exchange, NormMode::corrected, mode, synchronous);
      if (member.rank == 0) result = exchange.bytes_sent();
    });
    return result;
  };
  const auto all = sent(StepMode::stale, kSteps);
  const auto stale = sent(StepMode::stale, 1);
  const auto frozen = sent(StepMode::frozen, 1);
  const auto norms = static_cast<std::uint64_t>(one.model.sites().norms);
  // Two float64 numbers for each of four groups of two pictures, to two others, a step.
  CHECK(all.at(Site::Kind::norm) == kSteps * norms * 2 * 2 * 4 * 8 * 2);
  const bool same = stale == all;
  CHECK(same);
  CHECK(frozen.at(Site::Kind::norm) * kSteps == all.at(Site::Kind::norm));
  CHECK(frozen.at(Site::Kind::attention) * kSteps == all.at(Site::Kind::attention));
  // The first convolution sees the latents of this step in every step.
  const std::uint64_t first = 2 * 4 * 2 * 8 * 4 * 2;
  CHECK(frozen.at(Site::Kind::conv) == all.at(Site::Kind::conv) / kSteps + (kSteps - 1) * first);
}

TEST_CASE("a group larger than the patches, and a first step that is stale, are refused") {
  const at::NoGradGuard no_grad;
  const UNetBook book("unet_distrifusion");
  const UNetRun one(book, book.content["cases"][1]);
  on_ranks(tensor::Backend::shm, 3, [&](Member& member) {
    bool refused = false;
    try {
      PatchGroup exchange(member.group, one.cuts, one.in.latents.size(3), wait_long);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused, "two patches over three ranks");
  });
  on_ranks(tensor::Backend::shm, 2, [&](Member& member) {
    const at::NoGradGuard no_grad_here;
    PatchGroup exchange(member.group, one.cuts, one.in.latents.size(3), wait_long);
    bool refused = false;
    try {
      one.run(exchange, NormMode::separate, StepMode::stale, 0);
    } catch (const std::logic_error&) {
      refused = true;
    }
    require(refused, "nothing was kept");
  });
}
