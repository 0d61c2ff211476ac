#include "kernels/simd/isa.h"

namespace troupe::kernels::simd {

extern const Table k_baseline;
#if defined(__x86_64__)
extern const Table k_avx2;
extern const Table k_avx512;
#endif

namespace {

struct Choice {
  const Table* tables[3];
  int count = 0;

  Choice() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")) {
      tables[count++] = &k_avx512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) tables[count++] = &k_avx2;
#endif
    tables[count++] = &k_baseline;
  }
};

const Choice& choice() {
  static const Choice made;
  return made;
}

}  // namespace

const Table& table() {
  return *choice().tables[0];
}

const Table* const* tables(int& count) {
  count = choice().count;
  return choice().tables;
}

}  // namespace troupe::kernels::simd
