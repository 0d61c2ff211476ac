#pragma once

namespace troupe::cuda_stand_in {

/// Forgets the arrays of the block before; all is 0xff again.
void clear_shared_memory();
/// Returns whether nothing was written beside the arrays.
bool shared_memory_whole();

}  // namespace troupe::cuda_stand_in
