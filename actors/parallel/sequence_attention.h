#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/parallel/wait_for_work.h"
#include "models/dit/kv_store.h"
#include "models/dit/ports.h"

namespace troupe::actors {

/// Ulysses: ranks that hold all heads of some tokens become ranks that hold all those tokens for
/// some heads, and back. Tokens and heads may be uneven, also none. Source: DeepSpeed-Ulysses
/// (Jacobs et al.).
class HeadExchange {
 public:
  /// `heads` of all ranks together are split over them, remainders first.
  HeadExchange(std::shared_ptr<tensor::Group> group, std::int64_t heads, WaitForWork wait);

  /// Turns qkv [B, own tokens, 3, H, d] into [all tokens, B, 3, own heads, d], contiguous, in the
  /// order of ranks. `tokens`: number of tokens of each rank.
  at::Tensor scatter_heads(const at::Tensor& qkv, const std::vector<std::int64_t>& tokens);
  /// Turns `out` [B, all tokens, own heads, d] into [B, own tokens, H, d].
  at::Tensor gather_heads(const at::Tensor& out, const std::vector<std::int64_t>& tokens);

  std::int64_t own_heads() const { return head_count(group_->rank()); }

 private:
  std::int64_t first_head(int rank) const;
  std::int64_t head_count(int rank) const { return first_head(rank + 1) - first_head(rank); }

  std::shared_ptr<tensor::Group> group_;
  std::int64_t heads_;
  WaitForWork wait_;
};

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

  /// Sets which tokens of each batch item are padding, which nobody attends to; where it is not
  /// called, none are.
  void set_padding(std::vector<models::TokenRun> of_items) { padding_ = std::move(of_items); }
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

  /// Batch items side by side with the same padding, counted in the whole batch.
  struct Alike {
    models::KvStore::Items items;
    models::TokenRun padding;
  };

  bool delayed() const;
  std::vector<Alike> alike(std::int64_t first, std::int64_t count) const;
  void keep(int block, int step, const models::TokenRuns& runs, const at::Tensor& kv, bool fits,
            std::int64_t first_item);
  /// Returns the kept keys and values that the call's items `of` attend to beside the fresh ones.
  std::vector<std::vector<kernels::KeyValueRun>> kept(int block, const std::vector<Alike>& of,
                                                      const models::TokenRuns& fresh);
  std::vector<Incoming> exchange(const at::Tensor& kv, bool needed);
  void settle(int block);
  models::TokenRuns fresh_tokens() const;
  at::Tensor factors(int block, models::KvStore::Items items);

  int rank_;
  std::unique_ptr<models::KvStore> store_;
  Links links_;
  std::vector<models::TokenRun> padding_;  // by batch item; empty: none
  Call call_;
  std::map<int, std::vector<Incoming>> later_;  // by block: to be kept before the next step's call
  std::vector<tensor::Work> sends_;
};

/// Attention over all tokens of the picture from ranks that hold some of them: heads are exchanged
/// among ulysses ranks, keys and values among ring ranks, and what other calls computed is kept.
/// One rank with nothing kept is plain attention. Source: USP (Fang & Zhao), PipeFusion (Fang et
/// al.).
class SequenceAttention final : public models::AttentionPort {
 public:
  struct Place {
    int ring_rank = 0;
    int ring_degree = 1;
    int ulysses_rank = 0;
    int ulysses_degree = 1;
  };
  /// `exchange` is empty for one ulysses rank.
  SequenceAttention(Place place, std::optional<HeadExchange> exchange, RingAttention ring)
      : place_(place), exchange_(std::move(exchange)), ring_(std::move(ring)) {}

  /// The next calls are for these tokens, by sequence rank = ring rank · ulysses degree + ulysses
  /// rank. A call may be for the batch items from `first_item` on only, one that is not synchronous
  /// for items of the same history. The first `text_tokens` tokens of all are the text's.
  void begin(const std::vector<models::TokenRuns>& tokens, int step, bool synchronous,
             bool last_step, std::int64_t first_item = 0, std::int64_t text_tokens = 0);
  /// Does the same as RingAttention::set_padding.
  void set_padding(std::vector<models::TokenRun> of_items) {
    ring_.set_padding(std::move(of_items));
  }
  /// Forgets all values of earlier calls.
  void forget() { ring_.forget(); }
  at::Tensor attend(int slot, const at::Tensor& qkv,
                    models::Attend to = models::Attend::everything) override;

  models::KvStore* store() const { return ring_.store(); }
  std::int64_t bytes() const { return ring_.bytes(); }

 private:
  Place place_;
  std::optional<HeadExchange> exchange_;
  RingAttention ring_;
  struct Call {
    RingAttention::Call ring;
    std::vector<std::int64_t> peer_tokens;  // of each ulysses rank
  };
  Call call_of(const std::vector<models::TokenRuns>& tokens, RingAttention::Call ring) const;

  Call all_;
  Call picture_;  // without the text's tokens
};

}  // namespace troupe::actors
