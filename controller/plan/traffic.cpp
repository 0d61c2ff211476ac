#include "controller/plan/traffic.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "controller/plan/layout.h"
#include "controller/plan/request_defaults.h"
#include "controller/plan/vae_traffic.h"
#include "models/spec/transformer_facts.h"
#include "transport/wire/request_rules.h"

// What all kinds of traffic are added up with.

namespace troupe::plan {

namespace {

using Bytes = std::uint64_t;

/// Returns the bytes of the latents of all pictures to edit.
Bytes edited_bytes(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto patch = model.transformer.patch_size;
  return static_cast<Bytes>(edited_tokens(request, model) * patch * patch *
                            model.transformer.in_channels) *
         sizeof(float);
}

/// Returns the bytes of the latents of frames that a video is given, and of what a vision tower
/// sees of them.
Bytes frame_bytes(const Plan& plan, const spec::ModelSpec& model) {
  const auto frames = given_frames(plan.request, model);
  if (frames == 0) return 0;
  const auto& facts = model.transformer;
  return static_cast<Bytes>(model.latent_frames(frames) * plan.latent_channels *
                            (plan.latent_height / model.latent_frames(plan.request.num_frames)) *
                            plan.latent_width) *
             sizeof(float) +
         static_cast<Bytes>(facts.seen_tokens * facts.seen_width) *
             element_bytes(plan.request.dtype);
}

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
        text_(facts_.joint_tokens(prompt_tokens(plan.request, model)) +
              edited_tokens(plan.request, model)),
        width_(facts_.inner_dim()),
        head_dim_(facts_.attention_head_dim),
        heads_(static_cast<int>(facts_.num_attention_heads)),
        element_(element_bytes(plan.request.dtype)),
        images_(plan.images[at.dp].end - plan.images[at.dp].begin),
        batch_(images_ * plan.branches_per_actor()),
        stage_(plan.stages[at.pp]),
        attentions_(facts_.attentions_before(stage_.last_block) -
                    facts_.attentions_before(stage_.first_block)),
        with_picture_(facts_.picture_fill(plan.token_rows * plan.token_columns) +
                      edited_tokens(plan.request, model)) {
    for (int block = stage_.first_block; block < stage_.last_block; ++block) {
      const auto& of = facts_.blocks[block];
      picture_sums_ += of.picture_sums;
      text_sums_ += of.text_sums;
      all_sums_ += of.all_sums;
      more_quantized_sums_ += of.more_quantized_sums;
      joint_attentions_ += of.without_text ? 0 : 1;
      joint_norms_ += of.norms_across_heads ? 1 : 0;
    }
    picture_attentions_ = attentions_ - joint_attentions_;
  }

  RankTraffic add_up() {
    const Bytes steps = plan_.request.steps;
    const Bytes whole_steps = plan_.whole_steps();
    const Bytes patch_steps = steps - whole_steps;
    const Bytes ends_whole = plan_.is_whole(plan_.request.steps - 1) ? 1 : 0;
    std::vector<Bytes> parts;
    for (const auto& part : plan_.batch_parts[at_.dp])
      parts.push_back(part.end - part.begin);
    add_micro_step(-1, parts, whole_steps, whole_steps, whole_steps - ends_whole);
    // What is of use in the next step only is not sent in the last one.
    const bool later = plan_.request.method == Method::distrifusion && plan_.patches.size() > 1;
    const bool naive = plan_.request.exchange == PatchExchange::naive;
    const Bytes fed_back = patch_steps - (1 - ends_whole);
    const Bytes exchanges = naive ? 0 : later ? fed_back : patch_steps;
    const Bytes extrapolated = extrapolated_steps();
    for (int micro = 0; micro < layout_.micro_steps(); ++micro) {
      if (patch_steps > 0) add_micro_step(micro, {batch_}, patch_steps, exchanges, fed_back);
      if (extrapolated > 0) add_sums(micro, extrapolated);
    }
    add_caption();
    std::erase_if(traffic_.sent, [](const auto& entry) { return entry.second == 0; });
    return std::move(traffic_);
  }

 private:
  /// Returns in how many steps rows are extrapolated: they have the values of two steps then.
  Bytes extrapolated_steps() const {
    Bytes count = 0;
    if (plan_.request.kv != KvUse::predict) return count;
    for (int step = 0, known = 0; step < plan_.request.steps; ++step, ++known) {
      if (plan_.step_kind(step) == wire::StepKind::refill) known = 0;
      if (!plan_.is_whole(step) && known >= 2) ++count;
    }
    return count;
  }
  /// Number of a micro-step: a patch or a wave of them, or with -1 the whole picture.
  using Micro = int;

  Bytes rows_of(Micro micro, int sequence) const {
    return micro < 0 ? layout_.whole[sequence] : layout_.rows(micro, sequence);
  }
  Bytes text_of(Micro micro, int sequence) const {
    return text_ == 0 || micro > 0 ? 0 : share_of(micro, sequence).size();
  }
  spec::TextShare share_of(Micro micro, int sequence) const {
    return spec::text_share(text_, micro, {sequence, degrees_.ring, degrees_.ulysses},
                            plan_.request.method == Method::distrifusion);
  }
  /// Tokens of rows, without those that fill up the picture's.
  Bytes own_rows_of(Micro micro, int sequence) const { return rows_of(micro, sequence) * columns_; }
  /// Tokens of the picture, with those that go through its weights and stand among the text's.
  Bytes picture_of(Micro micro, int sequence) const {
    if (with_picture_ == 0 || micro > 0) return own_rows_of(micro, sequence);
    const auto share = share_of(micro, sequence);
    const auto more = share.end - std::max<std::int64_t>(share.begin, text_ - with_picture_);
    return own_rows_of(micro, sequence) + std::max<std::int64_t>(more, 0);
  }
  Bytes tokens_of(Micro micro, int sequence) const {
    return own_rows_of(micro, sequence) + text_of(micro, sequence);
  }

  /// Adds `times` micro-steps, each of so many batch items one part after the other, in `exchanges`
  /// of which the ring passes K,V on, after `fed_back` of which latents return to the first stage.
  void add_micro_step(Micro micro, const std::vector<Bytes>& parts, Bytes times, Bytes exchanges,
                      Bytes fed_back) {
    const auto all = [&](int sequence) { return tokens_of(micro, sequence); };
    const auto picture = [&](int sequence) { return picture_of(micro, sequence); };
    const Bytes own_text = text_of(micro, sequence_), own_picture = own_rows_of(micro, sequence_);
    sent_ulysses_ += times * (joint_attentions_ * ulysses_bytes(all) +
                              picture_attentions_ * ulysses_bytes(picture));
    sent_ring_ += exchanges *
                  (joint_attentions_ * ring_bytes(all) + picture_attentions_ * ring_bytes(picture));
    for (const Bytes items : parts) {
      sent_tp_ +=
          times * sum_bytes(items * own_picture, items * picture(sequence_), items * own_text);
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
  Bytes sum_bytes(Bytes rows, Bytes picture, Bytes text) const {
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
    return picture_sums_ * bytes(picture) + text_sums_ * bytes(rows + text - picture) +
           (all_sums_ + (quantized ? more_quantized_sums_ : 0)) * bytes(rows + text);
  }

  /// Returns the bytes of sums of squares for norms over all heads: of q and k, then of the cross
  /// attention's q and of the text's keys.
  Bytes norm_bytes(Bytes items, Bytes picture) const {
    if (degrees_.tp == 1) return 0;
    const auto bytes = [&](Bytes values) {
      return all_reduce_bytes(items * values, sizeof(float), degrees_.tp, at_.tp);
    };
    const Bytes text =
        facts_.caption_tokens(plan_.request.max_sequence_length) + facts_.seen_tokens;
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
    if (encodes) traffic_.sent["caption"] += others * encoded_picture_bytes(plan_, model_, at_.dp);
    if (encodes)
      traffic_.sent["caption"] +=
          others * (edited_bytes(plan_.request, model_) + frame_bytes(plan_, model_));
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
  const Bytes attentions_;
  const std::int64_t with_picture_;  // the last of the text's tokens, which go with the picture
  Bytes joint_attentions_ = 0, picture_attentions_ = 0, picture_sums_ = 0, text_sums_ = 0,
        all_sums_ = 0, more_quantized_sums_ = 0,
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

std::uint64_t RankTraffic::of(const std::string& role) const {
  const auto found = sent.find(role);
  return found == sent.end() ? 0 : found->second;
}

std::uint64_t RankTraffic::total() const {
  return std::accumulate(sent.begin(), sent.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& entry) { return sum + entry.second; });
}

std::uint64_t all_reduce_bytes(std::uint64_t elements, std::uint64_t element_size, int size,
                               int rank) {
  const auto begin = [&](int owner) { return elements * owner / size; };
  const std::uint64_t own = begin(rank + 1) - begin(rank);
  return (elements - own + (size - 1) * own) * element_size;
}

std::uint64_t rescale_bytes(const Plan& plan, const mesh::Coordinates& at, int patches) {
  const auto& degrees = plan.degrees;
  const std::uint64_t images = plan.images[at.dp].end - plan.images[at.dp].begin;
  return all_reduce_bytes(patches * images * 5, 8, degrees.sp() * degrees.tp,
                          mesh::sequence_rank(degrees, at) * degrees.tp + at.tp);
}

EncodedPictures encoded_pictures(const Plan& plan, const spec::ModelSpec& model, int dp) {
  const auto& request = plan.request;
  const std::uint64_t pictures = plan.images[dp].end - plan.images[dp].begin;
  const std::uint64_t samples = request.seeds.size() > 1 ? pictures : 1;
  EncodedPictures encoded;
  if (request.init_image_bytes > 0 &&
      model.inputs.begins_with_picture(request.strength.value_or(1)))
    encoded.begun = samples;
  if (model.inputs.beside_mask()) encoded.beside = samples;
  // Each picture has a sample of its own, as in diffusers.
  if (model.inputs.beside == spec::BesideLatents::control_picture) encoded.beside = pictures;
  return encoded;
}

std::uint64_t encoded_picture_bytes(const Plan& plan, const spec::ModelSpec& model, int dp) {
  const auto [begun, beside] = encoded_pictures(plan, model, dp);
  // What steps keep comes with its mask, a channel more.
  const bool kept = plan.request.mask_image_bytes > 0 && !model.inputs.beside_mask();
  const auto of_begun = static_cast<std::uint64_t>(plan.latent_channels + (kept ? 1 : 0));
  const auto of_beside = static_cast<std::uint64_t>(model.transformer.beside_channels);
  return (begun * of_begun + beside * of_beside) *
         static_cast<std::uint64_t>(plan.latent_height * plan.latent_width) * sizeof(float);
}

std::vector<PaperOrder> paper_orders(double tokens, double width, int layers, int devices,
                                     double element_size) {
  const double hidden = tokens * width * element_size;
  return {{"tensor parallel", "4·p·h·L", false, 4 * hidden * layers},
          {"DistriFusion", "2·p·h·L", true, 2 * hidden * layers},
          {"ring", "2·p·h·L", true, 2 * hidden * layers},
          {"Ulysses", "4/N·p·h·L", false, 4 * hidden * layers / devices},
          {"PipeFusion", "2·p·h", true, 2 * hidden}};
}

namespace {

using Bytes = std::uint64_t;
using Kind = spec::UNetSite::Kind;

const char* name_of(Kind kind) {
  return kind == Kind::conv ? "convolution" : kind == Kind::norm ? "group norm" : "attention";
}

/// Time when a step's layer is told: gathered at once (of this step), told for the next step, or
/// neither.
enum class Telling { now, later, never };

/// `last`: of the steps that compute the network.
Telling telling_of(const Plan& plan, const spec::UNetSite& site, bool first, int step, bool last) {
  if (plan.patches.size() < 2 || plan.request.exchange == PatchExchange::naive)
    return Telling::never;
  if (plan.is_whole(step)) return Telling::now;
  if (site.kind == Kind::conv && first) return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == GroupNormMoments::synchronous)
    return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == GroupNormMoments::separate)
    return Telling::never;
  return plan.request.exchange == PatchExchange::stale && !last ? Telling::later : Telling::never;
}

/// Bytes that a rank tells other patches in one step.
struct Told {
  Bytes sent = 0;  // with what lies between them in a buffer
  std::map<std::string, Bytes> by_layer;
};

/// Rule that says when a step's layers are told.
using TellingRule = std::function<Telling(const spec::UNetSite& site, bool first)>;

Told told_by(const Plan& plan, const UNetShares& shares, int rank, const TellingRule& rule) {
  const auto at = mesh::Mesh(plan.degrees).coordinates(rank);
  const Bytes batch =
      Bytes(plan.images[at.dp].end - plan.images[at.dp].begin) * plan.branches_per_actor();
  const auto own = patches_of(plan, mesh::sequence_rank(plan.degrees, at));
  const Bytes others = plan.degrees.sp() - 1;
  Told told;
  for (std::size_t i = 0; others > 0 && i < shares.sites().size(); ++i) {
    const auto& site = shares.sites()[i];
    const auto telling = rule(site, i == 0);
    if (telling == Telling::never) continue;
    for (int patch = own.begin; patch < own.end; ++patch) {
      const Bytes bytes = shares.bytes(site, patch, batch);
      told.sent += others * (telling == Telling::later ? aligned(bytes) : bytes);
      told.by_layer[name_of(site.kind)] += others * bytes;
    }
  }
  return told;
}

/// Shares of a U-Net and of its ControlNets.
struct NetworkShares {
  NetworkShares(const Plan& plan, const spec::ModelSpec& model)
      : unet(plan, *model.transformer.unet()) {
    for (const auto& net : model.controlnets)
      controls.emplace_back(plan, net.network.network);
  }
  UNetShares unet;
  std::vector<UNetShares> controls;
};

/// Returns the first step in which a ControlNet counts: it begins with values of this step.
bool begins_in(const Plan& plan, std::size_t net, int step) {
  for (int before = 0; before < step; ++before)
    if (wire::control_counts(plan.request, net, before)) return false;
  return true;
}

Told told_in(const Plan& plan, const NetworkShares& shares, int rank, int step) {
  const bool last = step + 1 == plan.request.steps;
  const auto rule = [&](const spec::UNetSite& site, bool first) {
    return telling_of(plan, site, first, step, last);
  };
  Told told = told_by(plan, shares.unet, rank, rule);
  for (std::size_t net = 0; net < shares.controls.size(); ++net) {
    if (!wire::control_counts(plan.request, net, step)) continue;
    const bool begins = begins_in(plan, net, step);
    const bool ends = last || !wire::control_counts(plan.request, net, step + 1);
    const auto own =
        told_by(plan, shares.controls[net], rank, [&](const spec::UNetSite& site, bool first) {
          const auto telling = telling_of(plan, site, first, step, ends);
          const bool alone =
              plan.patches.size() < 2 || plan.request.exchange == PatchExchange::naive;
          return begins && !alone ? Telling::now : telling;
        });
    told.sent += own.sent;
    for (const auto& [layer, bytes] : own.by_layer)
      told.by_layer[layer] += bytes;
  }
  return told;
}

/// Steps of a kind, in which the same is told: named by the first of each kind.
struct StepKind {
  const char* name;
  int first = -1;
  int count = 0;
};

std::vector<StepKind> step_kinds(const Plan& plan) {
  StepKind kinds[] = {{"synchronous"}, {"stale"}, {"last"}};
  for (int step = 0; step < plan.request.steps; ++step) {
    auto& kind = kinds[plan.is_whole(step) ? 0 : step + 1 < plan.request.steps ? 1 : 2];
    if (kind.count++ == 0) kind.first = step;
  }
  std::vector<StepKind> present(std::begin(kinds), std::end(kinds));
  std::erase_if(present, [](const auto& kind) { return kind.count == 0; });
  return present;
}

RankTraffic traffic_of(const Plan& plan, const spec::ModelSpec& model, const NetworkShares& shares,
                       int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const int sequence = mesh::sequence_rank(plan.degrees, at);
  RankTraffic traffic;
  const auto count = [&](const Told& told, Bytes times) {
    traffic.sent["stage"] += times * told.sent;
    for (const auto& [layer, bytes] : told.by_layer)
      traffic.by_layer[layer] += times * bytes;
  };
  if (model.controlnets.empty()) {
    for (const auto& kind : step_kinds(plan))
      count(told_in(plan, shares, rank, kind.first), kind.count);
  } else {  // which of them count differs from step to step
    for (int step = 0; step < plan.request.steps; ++step)
      count(told_in(plan, shares, rank, step), 1);
  }
  const auto& rows = plan.micro_steps.front().of_rank[sequence];
  traffic.sent["cfg"] = Bytes(plan.request.steps) * (plan.degrees.cfg - 1) * images *
                        plan.latent_channels * (rows.end - rows.begin) * plan.latent_width * 4;
  if (plan.request.guidance_rescale > 0 && plan.guidance)
    traffic.sent["stage"] += Bytes(plan.request.steps) * rescale_bytes(plan, at, 1);
  const Bytes listeners = plan.degrees.world() / plan.degrees.dp - 1;
  if (rank == plan.decode_rank(at.dp))
    traffic.sent["caption"] += listeners * encoded_picture_bytes(plan, model, at.dp);
  traffic.sent["caption"] += caption_bytes(plan, model, rank);
  std::erase_if(traffic.sent, [](const auto& entry) { return entry.second == 0; });
  std::erase_if(traffic.by_layer, [](const auto& entry) { return entry.second == 0; });
  return traffic;
}

}  // namespace

std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model) {
  const NetworkShares shares(plan, model);
  std::vector<RankTraffic> all;
  for (int rank = 0; rank < plan.degrees.world(); ++rank)
    all.push_back(traffic_of(plan, model, shares, rank));
  return all;
}

std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank) {
  const NetworkShares shares(plan, model);
  std::vector<StepTraffic> all;
  for (const auto& kind : step_kinds(plan)) {
    if (plan.degrees.sp() > 1)
      all.push_back({kind.name, kind.count, told_in(plan, shares, rank, kind.first).by_layer});
  }
  return all;
}

}  // namespace troupe::plan
