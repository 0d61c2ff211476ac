// libcuda.so.1, as far as `open_device` asks it whether there is a GPU.
#include <cstdlib>

extern "C" {

int cuInit(unsigned) {
  return 0;
}

int cuDeviceGetCount(int* count) {
  const char* gpus = std::getenv("TROUPE_PRETEND_GPUS");
  *count = gpus ? std::atoi(gpus) : 1;
  return 0;
}
}
