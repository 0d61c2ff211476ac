#define TROUPE_ISA_NAME "avx512"
#define TROUPE_ISA_TABLE k_avx512
#define TROUPE_LANES 16
#define TROUPE_PANEL_VECS 4
#define TROUPE_QUERY_TILES 4
#define TROUPE_KEY_PANELS (512 / (TROUPE_LANES * TROUPE_PANEL_VECS))
#define TROUPE_BEATS_LIBRARY true
#include "kernels/simd/table.inl.h"
