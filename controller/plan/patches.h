#pragma once
#include <cstdint>
#include <vector>

#include "transport/wire/actor_messages.h"

namespace troupe::plan {

/// Splits `rows` token rows into `patches` runs, top to bottom; remainders go to the first ones.
/// Throws std::invalid_argument when there are more patches than rows.
std::vector<wire::RowRange> split_rows(int rows, int patches);

/// Splits `count` items over `parts` as evenly as whole items allow, remainders first; parts may
/// come out empty.
std::vector<wire::RowRange> split_evenly(int count, int parts);

/// Returns the batch items (branches × pictures of an actor) that a step of the whole picture takes
/// one part after another: two parts a stage at most, which fill the pipeline, and one where there
/// is one stage; more where a part would have more than `most` items.
std::vector<wire::RowRange> batch_parts(int batch, int pp, int most);

}  // namespace troupe::plan
