#include "actors/parallel/sequence_attention.h"

#include <ATen/ATen.h>

#include <numeric>
#include <random>

#include "models/dit/diffusion_transformer.h"
#include "tests/actors/mesh_groups.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace std::chrono_literals;
using namespace troupe;
using actors::HeadExchange;
using actors::testing::meet;
using actors::testing::wait_long;
using tensor::testing::Member;
using tensor::testing::on_ranks;
using tensor::testing::require;

TEST_CASE("heads are exchanged for tokens and back, uneven ones and none") {
  const models::testing::OneThread one_thread;
  std::mt19937 random(45);
  for (int round = 0; round < 16; ++round) {
    const int size = 1 + round % 4;
    const int64_t batch = 1 + random() % 3, heads = random() % 6, dim = 1 + random() % 5;
    std::vector<int64_t> tokens(size), begins(size + 1, 0);
    for (int64_t& count : tokens)
      count = random() % 5;
    std::partial_sum(tokens.begin(), tokens.end(), begins.begin() + 1);
    const at::Tensor qkv = at::randn({batch, begins[size], 3, heads, dim});
    on_ranks(tensor::Backend::shm, size, [&](Member& member) {
      const std::shared_ptr<tensor::Group> group =
          member.device.connect("heads", member.rank, member.addresses, tensor::within(60s));
      HeadExchange exchange(group, heads, wait_long);
      const models::WeightShard shard{member.rank, size};
      require(exchange.own_heads() == shard.size(heads), "remainders go first");
      const at::Tensor own = qkv.slice(1, begins[member.rank], begins[member.rank + 1]);
      const at::Tensor mine = exchange.scatter_heads(own, tokens);
      require(at::equal(mine.transpose(0, 1), qkv.slice(3, shard.begin(heads), shard.end(heads))),
              "all tokens of the own heads, in the order of ranks");
      require(mine.is_contiguous(), "contiguous");
      const at::Tensor out = exchange.gather_heads(mine.select(2, 1).transpose(0, 1), tokens);
      require(at::equal(out, own.select(2, 1)), "all heads of the own tokens");
      meet(member);
    });
  }
}
