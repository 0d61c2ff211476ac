#include <ATen/core/grad_mode.h>

#include "tests/models/unet_run.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;
using unet::LocalExchange;
using unet::NormMode;
using unet::PatchCuts;
using unet::PatchPort;
using unet::StepMode;

TEST_CASE("DistriFusion on a U-Net equals the oracle in every mode") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  double worst = 0;
  int compared = 0;
  for (const auto& item : book.content["cases"]) {
    const UNetRun one(book, item);
    for (const std::string key : item["modes"]) {
      CAPTURE(one.name);
      CAPTURE(key);
      const auto dot = key.find('.');
      const bool plain = dot == std::string::npos;
      const bool naive = key == "naive";
      const NormMode norm = plain ? NormMode::corrected : kNormModes.at(key.substr(dot + 1));
      const StepMode mode = naive                       ? StepMode::naive
                            : key.starts_with("frozen") ? StepMode::frozen
                                                        : StepMode::stale;
      LocalExchange exchange(one.patches);
      const auto found = one.run(exchange, norm, mode, naive ? 0 : plain ? kSteps : one.warmup);
      if (naive) CHECK(exchange.bytes() == 0);
      const double error = relative_error(found, book.tensors.at(one.name + "." + key));
      worst = std::max(worst, error);
      // A row alone may have a corrected variance near zero, which makes much of rounding.
      const bool row_alone = norm == NormMode::corrected && one.cuts.height(1) < 2 * one.patches;
      CHECK(error < (row_alone ? 3e-4 : 1e-4));
      ++compared;
      // Each mode is far from the others by the oracle, so that none stands for another.
      for (const std::string other : item["modes"]) {
        if (other == key) continue;
        CHECK(relative_error(found, book.tensors.at(one.name + "." + other)) > 1e-3);
      }
    }
  }
  CHECK(compared == 28);
  MESSAGE(compared << " runs, largest difference " << worst << " of the range");
}

TEST_CASE("patches shared out among several give what they give in one place") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  for (const auto& item : book.content["cases"]) {
    const UNetRun one(book, item);
    for (const auto& [key, norm] : kNormModes) {
      LocalExchange exchange(one.patches);
      const auto together = one.run(exchange, norm, StepMode::stale, one.warmup);
      for (int count = 2; count <= one.patches; ++count) {
        CAPTURE(one.name);
        CAPTURE(key);
        CAPTURE(count);
        const RowShards shares(one.patches, count);
        std::vector<int> begins = {0};
        for (int s = 0; s < count; ++s)
          begins.push_back(static_cast<int>(shares.of(s).end));
        Board board(count);
        std::vector<at::Tensor> parts(static_cast<size_t>(count));
        std::vector<std::thread> threads;
        for (int s = 0; s < count; ++s) {
          threads.emplace_back([&, s, norm = norm] {
            const at::NoGradGuard no_grad_here;
            try {
              BoardExchange own(board, s, begins);
              parts[s] = one.run(own, norm, StepMode::stale, one.warmup);
            } catch (...) {
              board.give_up();
            }
          });
        }
        for (auto& thread : threads)
          thread.join();
        REQUIRE(parts.back().defined());
        CHECK(relative_error(at::cat(parts, 2), together) < 1e-6);
      }
    }
  }
}

TEST_CASE("one patch is exact in every mode, and nothing is kept") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  UNetRun one(book, book.content["cases"][0]);
  one.patches = 1;
  one.cuts = PatchCuts(one.in.latents.size(2), 1, one.model.levels());
  for (const auto& [key, norm] : kNormModes) {
    LocalExchange exchange(1);
    const auto found = one.run(exchange, norm, StepMode::stale, 0);
    CHECK(relative_error(found, book.tensors.at(one.name + ".exact")) < 1e-5);
    CHECK(exchange.bytes() == 0);
  }
}

TEST_CASE("the first step is synchronous, and bytes are told by kind of layer") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet_distrifusion");
  const UNetRun one(book, book.content["cases"][0]);
  LocalExchange nothing_kept(one.patches);
  CHECK_THROWS_AS(one.run(nothing_kept, NormMode::corrected, StepMode::stale, 0), std::logic_error);
  LocalExchange exchange(one.patches);
  one.run(exchange, NormMode::corrected, StepMode::stale, 1);
  const auto bytes = exchange.bytes_by_kind();
  const auto& sites = one.model.sites();
  CHECK(sites.attentions > 0);
  // Mean and mean square of four groups of two pictures, for each norm and patch.
  CHECK(bytes.at(unet::Site::Kind::norm) == sites.norms * one.patches * 2 * 2 * 4 * 8);
  CHECK(bytes.at(unet::Site::Kind::conv) > 0);
  CHECK(bytes.at(unet::Site::Kind::attention) > 0);
}
