#include "controller/plan/traffic.h"

#include <algorithm>

#include "controller/plan/encoders.h"
#include "controller/plan/layout.h"
#include "controller/plan/unet_traffic.h"
#include "controller/plan/vae_traffic.h"
#include "models/spec/transformer_facts.h"

namespace troupe::plan {
namespace {

using Bytes = std::uint64_t;

/// Adds up what one rank sends.
class Rank {
 public:
  Rank(const Plan& plan, const spec::ModelSpec& model, const Layout& layout,
       const mesh::Coordinates& at)
      : plan_(plan),
        layout_(layout),
        model_(model),
        degrees_(plan.degrees),
        at_(at),
        sequence_(at.ring * plan.degrees.ulysses + at.ulysses),
        columns_(plan.token_columns),
        facts_(model.transformer),
        text_(facts_.joint_tokens(plan.request.max_sequence_length)),
        width_(facts_.inner_dim()),
        head_dim_(facts_.attention_head_dim),
        heads_(static_cast<int>(facts_.num_attention_heads)),
        element_(element_bytes(plan.request.dtype)),
        images_(plan.images[at.dp].end - plan.images[at.dp].begin),
        batch_(images_ * plan.branches_per_actor()),
        stage_(plan.stages[at.pp]),
        attentions_(facts_.attentions_before(stage_.last_block) -
                    facts_.attentions_before(stage_.first_block)),
        picture_attentions_(attentions_ - stage_.blocks()) {
    for (int block = stage_.first_block; block < stage_.last_block; ++block) {
      const auto& of = facts_.blocks[block];
      picture_sums_ += of.picture_sums;
      text_sums_ += of.text_sums;
      all_sums_ += of.all_sums;
      joint_norms_ += of.norms_across_heads ? 1 : 0;
    }
  }

  RankTraffic add_up() {
    const Bytes steps = plan_.request.steps;
    const Bytes whole_steps = plan_.synchronous_steps;
    const Bytes patch_steps = steps - whole_steps;
    std::vector<Bytes> parts;
    for (const auto& part : plan_.batch_parts[at_.dp])
      parts.push_back(part.end - part.begin);
    add_micro_step(-1, parts, whole_steps, whole_steps, patch_steps == 0 ? steps - 1 : whole_steps);
    // What is of use in the next step only is not sent in the last one.
    const bool later = plan_.request.method == Method::distrifusion && plan_.patches.size() > 1;
    const bool naive = plan_.request.exchange == PatchExchange::naive;
    const Bytes exchanges = naive ? 0 : later && patch_steps > 0 ? patch_steps - 1 : patch_steps;
    for (int micro = 0; micro < layout_.micro_steps(); ++micro) {
      if (patch_steps > 0) add_micro_step(micro, {batch_}, patch_steps, exchanges, patch_steps - 1);
      // Rows are extrapolated once they have the values of two steps.
      const Bytes before = std::max<Bytes>(whole_steps, 2);
      if (plan_.request.kv == KvUse::predict && steps > before) add_sums(micro, steps - before);
    }
    add_caption();
    std::erase_if(traffic_.sent, [](const auto& entry) { return entry.second == 0; });
    return std::move(traffic_);
  }

 private:
  /// Number of a micro-step: a patch or a wave of them, or with -1 the whole picture.
  using Micro = int;

  Bytes rows_of(Micro micro, int sequence) const {
    return micro < 0 ? layout_.whole[sequence] : layout_.rows(micro, sequence);
  }
  Bytes text_of(Micro micro, int sequence) const {
    if (text_ == 0 || micro > 0) return 0;
    return spec::text_share(text_, micro, {sequence, degrees_.ring, degrees_.ulysses},
                            plan_.request.method == Method::distrifusion)
        .size();
  }
  Bytes picture_of(Micro micro, int sequence) const { return rows_of(micro, sequence) * columns_; }
  Bytes tokens_of(Micro micro, int sequence) const {
    return picture_of(micro, sequence) + text_of(micro, sequence);
  }

  /// Adds `times` micro-steps, each of so many batch items one part after the other, in `exchanges`
  /// of which the ring passes K,V on, after `fed_back` of which latents return to the first stage.
  void add_micro_step(Micro micro, const std::vector<Bytes>& parts, Bytes times, Bytes exchanges,
                      Bytes fed_back) {
    const auto all = [&](int sequence) { return tokens_of(micro, sequence); };
    const auto picture = [&](int sequence) { return picture_of(micro, sequence); };
    const Bytes own_text = text_of(micro, sequence_), own_picture = picture(sequence_);
    const Bytes blocks = stage_.blocks();
    sent_ulysses_ +=
        times * (blocks * ulysses_bytes(all) + picture_attentions_ * ulysses_bytes(picture));
    sent_ring_ +=
        exchanges * (blocks * ring_bytes(all) + picture_attentions_ * ring_bytes(picture));
    for (const Bytes items : parts) {
      sent_tp_ += times * sum_bytes(items * own_picture, items * own_text);
      if (joint_norms_ > 0 && own_picture > 0) sent_tp_ += times * norm_bytes(items, own_picture);
    }
    const bool last = at_.pp == degrees_.pp - 1;
    if (!last) {
      const Bytes each = times * batch_ * (own_picture + own_text) * element_;
      sent_edge_ += each * (width_ + skips_to(at_.pp + 1));
      for (int later = at_.pp + 2; later < degrees_.pp; ++later)
        sent_skip_ += each * skips_to(later);
      return;
    }
    const Bytes latents = images_ * plan_.latent_channels * rows_of(micro, sequence_) *
                          (plan_.latent_height / plan_.token_rows) * plan_.latent_width * 4;
    if (plan_.request.guidance_rescale > 0 && plan_.guidance)
      sent_stage_ += times * rescale_bytes(plan_, at_, patches_of_rescale());
    if (degrees_.pp > 1) sent_feedback_ += fed_back * latents;
    sent_cfg_ += times * (degrees_.cfg - 1) * latents;
  }

  /// Returns the channels of a token that this stage's blocks leave for those of a later one.
  Bytes skips_to(int later) const {
    const auto& stage = plan_.stages[later];
    return facts_.skip_width(stage_.first_block, stage_.last_block, stage.first_block,
                             stage.last_block);
  }

  int patches_of_rescale() const {
    const bool waves = plan_.request.method == Method::distrifusion;
    return layout_.micro_steps() * (waves ? degrees_.ring : 1);
  }

  /// Returns the bytes of all sums over shards of the weights in one micro-step's blocks.
  Bytes sum_bytes(Bytes picture, Bytes text) const {
    // Quantized products first agree on each token's largest value and then sum in float32; a joint
    // product of attention and feed-forward is two of them.
    const bool quantized = plan_.request.weight_dtype != WeightChoice::as_computed;
    const auto reduced = [&](Bytes elements, Bytes element) {
      return all_reduce_bytes(elements, element, degrees_.tp, at_.tp);
    };
    const auto bytes = [&](Bytes tokens) {
      return quantized ? reduced(tokens, sizeof(float)) + reduced(tokens * width_, sizeof(float))
                       : reduced(tokens * width_, element_);
    };
    if (degrees_.tp == 1) return 0;
    return picture_sums_ * bytes(picture) + text_sums_ * bytes(text) +
           (quantized ? 2 : 1) * all_sums_ * bytes(picture + text);
  }

  /// Returns the bytes of sums of squares for norms over all heads: of q and k, then of the cross
  /// attention's q and of the text's keys.
  Bytes norm_bytes(Bytes items, Bytes picture) const {
    if (degrees_.tp == 1) return 0;
    const auto bytes = [&](Bytes values) {
      return all_reduce_bytes(items * values, sizeof(float), degrees_.tp, at_.tp);
    };
    const Bytes text = facts_.caption_tokens(plan_.request.max_sequence_length);
    return joint_norms_ * (bytes(2 * picture) + bytes(picture + text));
  }

  /// Returns the bytes of own tokens of q, k and v for the heads of others, and of the others'
  /// tokens of the own heads' output back to them.
  template <class TokensOf>
  Bytes ulysses_bytes(const TokensOf& tokens_of) const {
    Bytes tokens_times_heads = 0;
    const Bytes own_heads = heads_of(heads_, degrees_, at_.tp, at_.ulysses);
    for (int peer = 0; peer < degrees_.ulysses; ++peer) {
      if (peer == at_.ulysses) continue;
      tokens_times_heads +=
          Bytes{3} * tokens_of(sequence_) * heads_of(heads_, degrees_, at_.tp, peer);
      tokens_times_heads += tokens_of(at_.ring * degrees_.ulysses + peer) * own_heads;
    }
    return tokens_times_heads * batch_ * head_dim_ * element_;
  }

  /// Returns the bytes of K and V of the own ring block, for the own heads, to every other ring
  /// rank.
  template <class TokensOf>
  Bytes ring_bytes(const TokensOf& tokens_of) const {
    Bytes block = 0;
    for (int u = 0; u < degrees_.ulysses; ++u)
      block += tokens_of(at_.ring * degrees_.ulysses + u);
    const Bytes own_heads = heads_of(heads_, degrees_, at_.tp, at_.ulysses);
    return Bytes(degrees_.ring - 1) * 2 * block * own_heads * head_dim_ * batch_ * element_;
  }

  /// Adds the sums that fit the prediction of K,V: float64 [batch, 2, 2], where rows are not fresh.
  void add_sums(int micro, Bytes times) {
    if (plan_.patches.size() < 2) return;
    const Bytes values = batch_ * 4;
    const int in_heads = at_.ulysses * degrees_.tp + at_.tp;
    const int heads_size = degrees_.ulysses * degrees_.tp;
    if (plan_.request.method == Method::distrifusion) {
      if (!layout_.busy[micro][at_.ring]) return;
      sent_heads_ += times * attentions_ * all_reduce_bytes(values, 8, heads_size, in_heads);
    } else if (micro + 1 < layout_.micro_steps()) {
      sent_stage_ +=
          times * attentions_ *
          all_reduce_bytes(values, 8, degrees_.ring * heads_size, at_.ring * heads_size + in_heads);
    }
  }

  /// Adds the replica's text, and the picture that it begins with.
  void add_caption() {
    const Bytes others = degrees_.world() / degrees_.dp - 1;
    const bool encodes = at_ == mesh::Coordinates{.dp = at_.dp, .pp = degrees_.pp - 1};
    if (encodes && plan_.request.init_image_bytes > 0)
      traffic_.sent["caption"] += others * encoded_picture_bytes(plan_, at_.dp);
    traffic_.sent["caption"] += caption_bytes(plan_, model_, mesh::Mesh(degrees_).rank(at_));
  }

  const Plan& plan_;
  const Layout& layout_;
  const spec::ModelSpec& model_;
  const mesh::Degrees& degrees_;
  const mesh::Coordinates at_;
  const int sequence_;
  const Bytes columns_;
  const spec::TransformerFacts& facts_;
  const std::int64_t text_;
  const Bytes width_, head_dim_;
  const int heads_;
  const Bytes element_, images_, batch_;
  const Stage& stage_;
  const Bytes attentions_, picture_attentions_;
  Bytes picture_sums_ = 0, text_sums_ = 0, all_sums_ = 0,
        joint_norms_ = 0;  // of the stage's blocks
  RankTraffic traffic_;
  // Looked up once: there are as many micro-steps as patches.
  Bytes& sent_cfg_ = traffic_.sent["cfg"];
  Bytes& sent_edge_ = traffic_.sent["edge"];
  Bytes& sent_feedback_ = traffic_.sent["feedback"];
  Bytes& sent_heads_ = traffic_.sent["heads"];
  Bytes& sent_ring_ = traffic_.sent["ring"];
  Bytes& sent_skip_ = traffic_.sent["skip"];
  Bytes& sent_stage_ = traffic_.sent["stage"];
  Bytes& sent_tp_ = traffic_.sent["tp"];
  Bytes& sent_ulysses_ = traffic_.sent["ulysses"];
};

std::vector<RankTraffic> transformer_traffic(const Plan& plan, const spec::ModelSpec& model) {
  const mesh::Mesh mesh(plan.degrees);
  const auto layout =
      layout_of(plan.request.method, plan.patches, plan.degrees.ring, plan.degrees.ulysses);
  std::vector<RankTraffic> all;
  for (int rank = 0; rank < mesh.world(); ++rank)
    all.push_back(Rank(plan, model, layout, mesh.coordinates(rank)).add_up());
  return all;
}

}  // namespace

std::vector<RankTraffic> predict_traffic(const Plan& plan, const spec::ModelSpec& model) {
  auto all =
      model.transformer.unet() ? unet_traffic(plan, model) : transformer_traffic(plan, model);
  add_vae_traffic(plan, model, all);
  return all;
}

}  // namespace troupe::plan
