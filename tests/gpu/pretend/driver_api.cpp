// libcuda.so.1, as far as `open_device` asks it whether there is a GPU, and `device_name` for its
// name.
#include <cstdio>
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

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int size, int) {
  const char* called = std::getenv("TROUPE_PRETEND_NAME");
  std::snprintf(name, static_cast<std::size_t>(size), "%s", called ? called : "Pretend GPU");
  return 0;
}
}
