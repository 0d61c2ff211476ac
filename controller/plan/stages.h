#pragma once
#include <vector>

namespace troupe::plan {

/// Run of transformer blocks that one pipeline stage keeps.
struct Stage {
  int first_block = 0;
  int last_block = 0;  // exclusive
  int blocks() const { return last_block - first_block; }
  bool operator==(const Stage&) const = default;
};

/// Splits blocks into contiguous stages so that the costliest stage is as cheap as can be; but
/// evenly by number, remainders first, where that costs at most 2 % more. No stage is empty. Cost
/// is in any unit (FLOPs or seconds), one entry a block. Throws std::invalid_argument when there
/// are more stages than blocks.
std::vector<Stage> split_blocks(const std::vector<double>& costs, int stages);

/// Returns stages of the sizes that a user listed. Throws std::invalid_argument naming what does
/// not add up to the model's blocks.
std::vector<Stage> listed_stages(const std::vector<int>& sizes, int blocks);

}  // namespace troupe::plan
