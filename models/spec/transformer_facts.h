#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::spec {

/// Meaning of a guidance scale for a model.
enum class GuidanceKind {
  branches,  ///< classifier-free: a negative branch is computed beside the positive one
  embedded,  ///< the scale is an input of the model; one branch
  none,      ///< the model was distilled without guidance: the scale changes nothing
};

/// Numbers that plans need of one block.
struct BlockFacts {
  /// Number of weights that a token meets in matrix products; in a joint block, a text token meets
  /// as many.
  double weights = 0;
  /// Number of weights that a text token meets once a job: of a block with cross attention, or of
  /// one that the text has for itself.
  double caption_weights = 0;
  /// Numbers of sums over shards of the weights, by the tokens that each sum is over.
  int picture_sums = 0;
  int text_sums = 0;
  int all_sums = 0;
  /// Number of sums over all tokens that quantized products have beside these.
  int more_quantized_sums = 0;
  /// True if there is attention over the picture's tokens alone, beside that over all tokens.
  bool picture_attention = false;
  /// True if queries and keys are normed over all heads together. Shards then sum up in float32:
  /// two numbers a token before the self attention; one a token and one a text token before the
  /// cross attention.
  bool norms_across_heads = false;
  /// True if the picture's tokens alone go through the block, and attend to each other alone.
  bool without_text = false;

  bool operator==(const BlockFacts&) const = default;
};

/// Numbers that plans and actors need of a transformer of any family.
struct TransformerFacts {
  std::int64_t num_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t attention_head_dim = 0;
  /// Number of channels of the latents; the prediction that is used has as many.
  std::int64_t in_channels = 0;
  /// Number of channels that stand behind them in the network's input, the same in every step (see
  /// BesideLatents); 0: none.
  std::int64_t beside_channels = 0;
  /// Channels that the last product has for a latent pixel: more where a variance is learned.
  std::int64_t out_channels = 0;
  /// Side of a token in latent pixels.
  std::int64_t patch_size = 1;
  /// Side in latent pixels where a request names no size.
  std::int64_t sample_size = 0;
  /// Columns in latent pixels where a request names no size, if they are not as many as the rows;
  /// 0: as many.
  std::int64_t sample_width = 0;
  /// Frames of a video where a request names no number; 0: the model makes pictures.
  std::int64_t sample_frames = 0;
  /// Token rows, and columns, that it has positions for; 0: any number.
  std::int64_t most_tokens_a_side = 0;
  /// Width of the projected text states that all stages get.
  std::int64_t caption_width = 0;
  /// Width of the text vector that all stages get beside them; 0: none.
  std::int64_t pooled_width = 0;
  /// Number and width of a vision tower's states that blocks attend to beside the text; 0: none.
  std::int64_t seen_tokens = 0;
  std::int64_t seen_width = 0;
  /// Text tokens beside those of the request's max_sequence_length.
  std::int64_t more_text_tokens = 0;
  /// The only max_sequence_length that it takes; 0: any.
  std::int64_t fixed_text_tokens = 0;
  /// Largest max_sequence_length that it has positions for; 0: any.
  std::int64_t most_text_tokens = 0;
  /// True if padding is computed and attended to like any token; else it is masked out everywhere.
  bool pads_text = true;
  /// True if text tokens are part of the sequence that the blocks attend over.
  bool joint = false;
  /// The tokens of a text, and those of the picture of a joint model, are filled up to a multiple
  /// of this many with tokens that are attended to as they are.
  std::int64_t token_multiple = 1;
  GuidanceKind guidance = GuidanceKind::branches;
  std::vector<BlockFacts> blocks;
  /// Earlier block whose hidden states each block takes up again; -1: none. The states that were
  /// left last are taken up first. Empty if no block takes up states.
  std::vector<int> skip_from;

  std::int64_t caption_tokens(std::int64_t max_sequence_length) const {
    return filled_up(max_sequence_length) + more_text_tokens;
  }
  /// Text tokens of the sequence that blocks attend over; behind them stand those that may fill up
  /// the picture's, of which the last are used.
  std::int64_t joint_tokens(std::int64_t max_sequence_length) const {
    return joint ? caption_tokens(max_sequence_length) + token_multiple - 1 : 0;
  }
  /// Returns the smallest multiple of token_multiple that is not below `tokens`.
  std::int64_t filled_up(std::int64_t tokens) const {
    return (tokens + token_multiple - 1) / token_multiple * token_multiple;
  }
  /// Returns how many tokens fill up the picture's own, in a joint model.
  std::int64_t picture_fill(std::int64_t picture_tokens) const {
    return joint ? filled_up(picture_tokens) - picture_tokens : 0;
  }
  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  /// Attentions over stored K,V in blocks [0, block): where a block's own begin in the whole model.
  std::int64_t attentions_before(std::int64_t block) const;
  /// Channels of one token before `block` in a stage of blocks [first, last): its hidden states,
  /// and what blocks have left that this stage takes up again or sends to a later one.
  std::int64_t edge_width(std::int64_t first, std::int64_t last, std::int64_t block) const;
  /// Channels of one token that blocks [first, last) leave and [later_first, later_last) take up.
  std::int64_t skip_width(std::int64_t first, std::int64_t last, std::int64_t later_first,
                          std::int64_t later_last) const;

  bool operator==(const TransformerFacts&) const = default;
};

/// Returns whether the three coordinates of rotary positions have an even number of channels each,
/// and all of a head's together.
bool divides_head(const std::vector<std::int64_t>& axes, std::int64_t head_dim);

/// Returns the number of hidden states that blocks [first, last) leave and blocks
/// [later_first, later_last) take up again; skip_from as in TransformerFacts.
inline std::int64_t count_skip_connections(const std::vector<int>& skip_from, std::int64_t first,
                                           std::int64_t last, std::int64_t later_first,
                                           std::int64_t later_last) {
  const auto end = std::min<std::int64_t>(later_last, std::ssize(skip_from));
  std::int64_t states = 0;
  for (std::int64_t block = later_first; block < end; ++block)
    states += first <= skip_from[block] && skip_from[block] < last ? 1 : 0;
  return states;
}

/// Text tokens [begin, end) that one rank of a sequence group computes in one micro-step.
struct TextShare {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  bool operator==(const TextShare&) const = default;
};

/// Place of a rank in its sequence group; sequence rank = ring rank × ulysses + ulysses rank.
struct SequencePlace {
  int rank = 0;
  int ring = 1;
  int ulysses = 1;
};

/// Share of the text's tokens of a joint model. They are computed once a step: in a step of the
/// whole picture (micro_step -1) with the picture, else with patch 0, which under distrifusion is
/// ring rank 0's alone. They are split over the ranks that compute them, remainders first.
TextShare text_share(std::int64_t tokens, int micro_step, SequencePlace place, bool distrifusion);

}  // namespace troupe::spec
