#include "actors/parallel/halo_exchange.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <atomic>
#include <string>
#include <vector>

#include "tests/actors/mesh_groups.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"
#include "tests/tensor/ranks.h"

using namespace std::chrono_literals;
using namespace troupe;
using actors::HaloExchange;
using actors::testing::wait_long;
using models::AutoencoderKL;
using tensor::testing::Member;
using tensor::testing::on_ranks;
using tensor::testing::require;

namespace {

// What rank 0 of `size` has after `body` on every rank; the others have nothing.
at::Tensor at_rank_zero(tensor::Backend backend, int size,
                        const std::function<at::Tensor(Member&)>& body) {
  at::Tensor result;
  on_ranks(backend, size, [&](Member& member) {
    const auto mine = body(member);
    require(mine.defined() == (member.rank == 0), "rank 0 alone has the picture");
    if (member.rank == 0) result = mine;
  });
  return result;
}

}  // namespace

TEST_CASE("ranks decode together what one decodes") {
  const models::testing::OneThread one_thread;
  for (const auto& folder : {models::testing::kTinyVae, models::testing::kDemoVae}) {
    const AutoencoderKL vae = models::testing::load_vae(folder);
    const auto latents = at::randn({2, 4, 7, 5});
    const auto whole = vae.decode(latents);
    for (const auto backend : tensor::testing::cpu_backends()) {
      for (int size : {1, 2, 3, 4, 7}) {
        CAPTURE(size);
        const auto found = at_rank_zero(backend, size, [&](Member& member) {
          HaloExchange port(member.group, latents.size(2), wait_long);
          return port.collect_rows(vae.decode_rows(latents, port));
        });
        REQUIRE(found.sizes() == whole.sizes());
        CHECK(models::testing::relative_error(found, whole) < 1e-6);
      }
    }
  }
}

TEST_CASE("ranks encode together what one encodes") {
  const models::testing::OneThread one_thread;
  const AutoencoderKL vae = models::testing::load_vae(models::testing::kTinyVae);
  const auto pictures = at::rand({1, 3, 45, 33}) * 2 - 1;
  const auto whole = vae.encode(pictures);
  for (int size : {2, 3, 5}) {
    CAPTURE(size);
    for (const bool means : {true, false}) {
      const auto found = at_rank_zero(tensor::Backend::shm, size, [&](Member& member) {
        HaloExchange port(member.group, 45 / 8, wait_long);
        const auto own = vae.encode_rows(pictures, port);
        return port.collect_rows(means ? own.mean : own.logvar);
      });
      CHECK(models::testing::relative_error(found, means ? whole.mean : whole.logvar) < 1e-6);
    }
  }
}

TEST_CASE("tiles shared out give the tiled picture, bit for bit") {
  const models::testing::OneThread one_thread;
  const AutoencoderKL vae = models::testing::load_vae(models::testing::kTinyVae);
  for (const auto& [height, width] : {std::pair{14, 9}, {20, 8}, {5, 5}}) {
    const auto latents = at::randn({2, 4, height, width});
    const auto one = vae.decode_tiled(latents);
    const int tiles = models::decode_tiles(vae.spec(), height, width).count();
    for (int size : {1, 2, 3, 4, 8}) {
      CAPTURE(height);
      CAPTURE(size);
      std::atomic<int> blocks{0};
      const auto found = at_rank_zero(tensor::Backend::shm, size, [&](Member& member) {
        return actors::decode_tiles_together(vae, latents, member.group, wait_long,
                                             [&](int, int) { ++blocks; });
      });
      CHECK(at::equal(found, one));
      CHECK(blocks == 2 * tiles * vae.blocks());
    }
  }
}

TEST_CASE("tiles shared out encode to the tiled latents, bit for bit") {
  const models::testing::OneThread one_thread;
  const AutoencoderKL vae = models::testing::load_vae(models::testing::kTinyVae);
  for (const auto& [height, width] : {std::pair{112, 72}, {40, 40}}) {
    const auto pictures = at::rand({1, 3, height, width}) * 2 - 1;
    const auto one = vae.encode_tiled(pictures);
    const int tiles = models::encode_tiles(vae.spec(), height, width).count();
    for (int size : {1, 2, 3, 8}) {
      CAPTURE(height);
      CAPTURE(size);
      std::atomic<int> blocks{0};
      for (const bool means : {true, false}) {
        const auto found = at_rank_zero(tensor::Backend::shm, size, [&](Member& member) {
          const auto own = actors::encode_tiles_together(vae, pictures, member.group, wait_long,
                                                         [&](int, int) { ++blocks; });
          return means ? own.mean : own.logvar;
        });
        CHECK(at::equal(found, means ? one.mean : one.logvar));
      }
      CHECK(blocks == 2 * tiles * vae.encoder_blocks());
    }
  }
  CHECK_THROWS_AS(vae.encode_tiled(at::rand({1, 3, 45, 64})), std::invalid_argument);
}

TEST_CASE("a rank that fails ends the others' decoding with its cause") {
  const models::testing::OneThread one_thread;
  const AutoencoderKL vae = models::testing::load_vae(models::testing::kTinyVae);
  const auto latents = at::randn({1, 4, 6, 5});
  std::atomic<int> failed{0};
  on_ranks(tensor::Backend::shm, 3, [&](Member& member) {
    HaloExchange port(member.group, latents.size(2), wait_long);
    const auto error = tensor::testing::failure_of([&] {
      vae.decode_rows(latents, port, [&](int done, int) {
        if (member.rank == 1 && done == 3) member.group.abort("rank 1 gives up");
      });
    });
    require(std::string(error.what()).find("rank 1 gives up") != std::string::npos, "the cause");
    ++failed;
  });
  CHECK(failed == 3);
}

TEST_CASE("a wait that ends without the rows is passed on") {
  const AutoencoderKL vae = models::testing::load_vae(models::testing::kTinyVae);
  on_ranks(tensor::Backend::shm, 2, [&](Member& member) {
    if (member.rank == 1) return;  // never comes
    HaloExchange port(member.group, 4,
                      [](const tensor::Work& work) { work.wait(tensor::within(50ms)); });
    const auto error = tensor::testing::failure_of([&] {
      vae.decode_rows(at::randn({1, 4, 4, 4}), port);
    });
    require(error.failure() == tensor::Failure::timeout ||
                error.failure() == tensor::Failure::peer_left,
            "a deadline or a peer that left");
  });
}

TEST_CASE("more ranks than rows are refused") {
  on_ranks(tensor::Backend::shm, 3, [&](Member& member) {
    bool refused = false;
    try {
      HaloExchange(member.group, 2, wait_long);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused, "refused");
  });
}
