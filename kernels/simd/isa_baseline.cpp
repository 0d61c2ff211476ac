#define TROUPE_ISA_NAME "baseline"
#define TROUPE_ISA_TABLE k_baseline
#define TROUPE_LANES 4
#define TROUPE_PANEL_VECS 2
#define TROUPE_QUERY_TILES 4
#define TROUPE_KEY_PANELS (512 / (TROUPE_LANES * TROUPE_PANEL_VECS))
#if defined(__aarch64__)
#define TROUPE_BEATS_LIBRARY true
#else
#define TROUPE_BEATS_LIBRARY false
#endif
#include "kernels/simd/table.inl.h"
