#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

/// Prompts as rows of ids of equal length.
struct Tokenized {
  std::vector<std::vector<std::int64_t>> ids;
  /// Tokens that are not padding, end token included; the attention mask is 1 below it.
  std::vector<std::int64_t> lengths;
  /// Ends of the prompts that did not fit, spelled from their tokens; empty for a prompt that
  /// fitted.
  std::vector<std::string> cut;
};

/// Rule by which a row of a tokenizer's ids is made.
struct RowRule {
  std::vector<std::int64_t> end;  // the tokens that end each row, even one that is cut
  std::int64_t pad = 0;
  std::int64_t least =
      1;  // ids that every row has: the end token, and the first one's where there is one
  std::function<std::vector<std::int64_t>(std::string_view)>
      encode;  // the end tokens last, if there are some
  std::function<std::string(const std::vector<std::int64_t>&)> spell;
};

/// Rows cut or padded to `max_length`, as diffusers does: a prompt that is too long keeps its first
/// ids and the end tokens, if there are some. Throws std::invalid_argument below `least`.
Tokenized make_rows(const RowRule& rule, const std::vector<std::string>& prompts,
                    std::int64_t max_length);

}  // namespace troupe::models
