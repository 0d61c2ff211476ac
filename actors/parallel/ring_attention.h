#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "actors/parallel/wait_for_work.h"
#include "models/dit/kv_store.h"

namespace troupe::actors {

/// Attention of a rank's own tokens, for its heads, over all tokens of the picture: its own, those
/// whose keys and values come from the other ranks of a ring, and those kept from before.
///
/// Every rank sends its block of fresh keys and values to each other; attention over what is here
/// goes on meanwhile, parts are merged by their log-sum-exp. Sources: Ring Attention (Liu et al.),
/// USP (Fang & Zhao); DistriFusion (Li et al.) where blocks are used one step later.
class RingAttention {
 public:
  struct Links {
    std::shared_ptr<tensor::Group> ring;   // null: alone
    std::shared_ptr<tensor::Group> fresh;  // who shares a call's fresh rows, for predicted K,V
    WaitForWork wait;
  };
  /// A call: one micro-step at all blocks.
  struct Call {
    int step = 0;
    std::vector<models::TokenRuns> tokens;  // computed by each ring rank
    bool synchronous = true;                // all tokens, attended to fresh
    bool last_step = false;
    std::int64_t first_item = 0;  // of the batch; a call may be for some items, which are alike
  };

  /// `store` is null where every call is synchronous.
  RingAttention(int rank, std::unique_ptr<models::KvStore> store, Links links);

  void begin(Call call);
  /// Forgets all values of earlier calls.
  void forget();
  /// qkv [own tokens, B, 3, H, d], any strides → [B, own tokens, H, d].
  at::Tensor attend(int block, const at::Tensor& qkv);

  /// Null where every call is synchronous.
  models::KvStore* store() const { return store_.get(); }
  std::int64_t bytes() const { return store_ ? store_->bytes() : 0; }

 private:
  /// A peer's block under way.
  struct Incoming {
    int step = 0;
    models::TokenRuns runs;
    std::int64_t first_item = 0;
    at::Tensor kv;  // [tokens, B, 2, H, d]
    tensor::Work work;
  };

  bool delayed() const;
  std::vector<Incoming> exchange(const at::Tensor& kv, bool needed);
  void settle(int block);
  models::TokenRuns fresh_tokens() const;
  at::Tensor factors(int block, const std::vector<models::KvStore::Choice>& choices,
                     models::KvStore::Items items);

  int rank_;
  std::unique_ptr<models::KvStore> store_;
  Links links_;
  Call call_;
  std::map<int, std::vector<Incoming>> later_;  // by block: to be kept before the next step's call
  std::vector<tensor::Work> sends_;
};

}  // namespace troupe::actors
