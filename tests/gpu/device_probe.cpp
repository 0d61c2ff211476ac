// Loaded by the CUDA driver into a process where CUDA_INJECTION64_PATH names it. Counts that
// process's calls of the driver by name, and breaks its context on request: for scripts/gpu-check,
// which wants to know launches and waits of a job, and what becomes of a job whose device fails for
// good.
//
// TROUPE_DEVICE_PROBE=STEM: the counts are in STEM.PID.calls, a mapped file, so that they outlive a
// kill; once STEM.PID.break is there, a kernel that traps, which was loaded when the process made
// its context, is launched.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace {

/// One kind of call. Zeros behind the last.
struct Entry {
  char name[56];
  std::atomic<std::uint64_t> count;
};
constexpr std::size_t kEntries = 4096;  // by CUPTI's number of a call

constexpr std::chrono::milliseconds kLook{10};

Entry* entries = nullptr;
std::string stem;

/// CUPTI's, as cupti_callbacks.h has it; only what is read here.
struct CallbackData {
  int site;  // 0: the call begins
  const char* function;
};
using Callback = void (*)(void* self, int domain, std::uint32_t call, const CallbackData* data);
constexpr int kDriverDomain = 1;

void count(void*, int domain, std::uint32_t call, const CallbackData* data) {
  if (domain != kDriverDomain || data->site != 0 || call >= kEntries) return;
  Entry& entry = entries[call];
  if (entry.count.fetch_add(1, std::memory_order_relaxed) == 0)
    std::strncpy(entry.name, data->function, sizeof entry.name - 1);
}

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

bool map_entries() {
  const int file = open((stem + ".calls").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kEntries * sizeof(Entry)) != 0) return false;
  void* place =
      mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (place == MAP_FAILED) return false;
  entries = static_cast<Entry*>(place);
  return true;
}

void begin_counting() {
  void* cupti = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (!cupti || !map_entries()) {
    std::fprintf(stderr, "device probe: calls are not counted: %s\n",
                 cupti ? "no file" : dlerror());
    return;
  }
  const auto subscribe = find<int (*)(void**, Callback, void*)>(cupti, "cuptiSubscribe");
  const auto enable = find<int (*)(std::uint32_t, void*, int)>(cupti, "cuptiEnableDomain");
  void* subscriber = nullptr;
  if (!subscribe || !enable || subscribe(&subscriber, count, nullptr) != 0 ||
      enable(1, subscriber, kDriverDomain) != 0)
    std::fprintf(stderr, "device probe: calls are not counted: CUPTI refuses\n");
}

constexpr const char* kTrap =
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry "
    "troupe_trap()\n{\ntrap;\nret;\n}\n";

/// A kernel that traps, in the first device's primary context.
class Trap {
 public:
  /// Waits until the process has made that context, and loads the kernel there at once: later, a
  /// receive might wait on the device, and loading would wait for that. False where it cannot.
  bool load() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return false;
    const auto state = find<int (*)(int, unsigned*, int*)>(driver, "cuDevicePrimaryCtxGetState");
    const auto retain = find<int (*)(void**, int)>(driver, "cuDevicePrimaryCtxRetain");
    const auto take = find<int (*)(void*)>(driver, "cuCtxSetCurrent");
    const auto load = find<int (*)(void**, const void*)>(driver, "cuModuleLoadData");
    const auto get = find<int (*)(void**, void*, const char*)>(driver, "cuModuleGetFunction");
    launch_ = find<Launch>(driver, "cuLaunchKernel");
    if (!state || !retain || !take || !load || !get || !launch_) return false;
    unsigned flags = 0;
    int active = 0;
    // Until the driver is ready it answers with an error.
    while (state(0, &flags, &active) != 0 || active == 0)
      std::this_thread::sleep_for(kLook);
    void *context = nullptr, *module = nullptr;
    int error = retain(&context, 0);
    if (error == 0) error = take(context);
    if (error == 0) error = load(&module, kTrap);
    if (error == 0) error = get(&function_, module, "troupe_trap");
    if (error != 0) std::fprintf(stderr, "device probe: no kernel to break with (%d)\n", error);
    return error == 0;
  }
  /// Breaks the context: from then on every call in it fails. For the thread that has loaded it.
  void spring() const {
    const int error = launch_(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
    std::fprintf(stderr, "device probe: broke the context (launching gave %d)\n", error);
  }

 private:
  using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         unsigned, void*, void**, void**);
  Launch launch_ = nullptr;
  void* function_ = nullptr;
};

void wait_for_request() {
  Trap trap;
  if (!trap.load()) return;
  const std::string request = stem + ".break";
  while (access(request.c_str(), F_OK) != 0)
    std::this_thread::sleep_for(kLook);
  trap.spring();
}

}  // namespace

/// Entry that the driver calls as it starts; not 0 is success.
extern "C" int InitializeInjection() {
  const char* chosen = std::getenv("TROUPE_DEVICE_PROBE");
  if (!chosen) return 1;
  stem = std::string(chosen) + "." + std::to_string(getpid());
  begin_counting();
  std::thread(wait_for_request).detach();
  return 1;
}
