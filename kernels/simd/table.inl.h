// Defines the table of one instruction set under the name TROUPE_ISA_TABLE.
#pragma once

#include "kernels/simd/attention.inl.h"
#include "kernels/simd/quantize.inl.h"
#include "kernels/simd/rows.inl.h"

namespace troupe::kernels::simd {

extern const Table TROUPE_ISA_TABLE;
const Table TROUPE_ISA_TABLE = {
    TROUPE_ISA_NAME,
    kLanes,
    kPanel,
    TROUPE_BEATS_LIBRARY,
    norm_modulate,
    add_rows,
    gelu_rows,
    pack_weight,
    gemm,
    packed_keys_size,
    packed_values_size,
    pack_keys,
    pack_values,
    attention_scratch,
    kQueryBlock,
    attention,
    merge_attention,
    difference_sums,
    largest_of_rows,
    quantize_rows,
    scale_sums,
};

}  // namespace troupe::kernels::simd
