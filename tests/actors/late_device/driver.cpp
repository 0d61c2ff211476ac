// In the place of libcuda.so.1: a driver with one GPU, as far as open_device asks.
extern "C" {
int cuInit(unsigned) {
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}
}
