#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "actors/actor_process.h"
#include "actors/device.h"
#include "actors/user/control_thread.h"
#include "actors/user/user_host.h"
#include "base/available_memory.h"
#include "base/error_text.h"
#include "models/plugin/network_plugin.h"

namespace {

/// Checks whether a device is there, for `troupe join`. Returns 0 after a word on standard output,
/// since a driver may end the process with 0 as well, or 1 after the reason on standard error. The
/// process ends with the one that asks.
int probe(const char* device, const char* parent) {
  troupe::runtime::begin_as_child(std::atoi(parent));
  try {
    troupe::actors::open_device(device);
    std::puts("troupe-probed");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", troupe::first_line(error.what()).c_str());
    return 1;
  }
}

std::uint32_t own_id;
std::terminate_handler otherwise;

/// Ends the process with the message and exit code of a lost device if that is why it terminates:
/// once the device is lost, destructors of LibTorch's throw, too, such as that of pinned memory.
[[noreturn]] void on_terminate() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    if (const auto why = troupe::actors::lost_device(error, at::kCPU)) {
      std::fprintf(stderr, "troupe-actor %u: %s%s\n", own_id, troupe::actors::kLostDevice,
                   why->c_str());
      troupe::runtime::leave(troupe::actors::ActorProcess::kDeviceLost);
    }
  } catch (...) {
  }
  otherwise();
  std::abort();
}

/// A user's actor with GPUs finds LibTorch's CUDA half loaded, whatever its plugin asks first. It
/// may do without: then the reason is in its log.
void open_given_gpus() {
  const char* given = std::getenv("CUDA_VISIBLE_DEVICES");
  if (given == nullptr || *given == '\0') return;
  try {
    troupe::actors::open_cuda_half("cuda");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view(argv[1]) == "--probe") return probe(argv[2], argv[3]);
  // A user's actor whose class needs LibTorch.
  if (argc > 1 && std::string_view(argv[1]) == "--host") {
    open_given_gpus();
    return troupe::runtime::host_main(argc, argv);
  }
  CLI::App app{
      "troupe-actor: one actor of a troupe cluster. Node agents start it; use `troupe start` or "
      "`troupe run`."};
  troupe::actors::ActorOptions options;
  int parent = 0;
  app.add_option("--control", options.control_endpoint, "control plane of the controller")
      ->required();
  app.add_option("--blobs", options.blob_endpoint, "blob channel of the controller")->required();
  app.add_option("--id", options.id)->required();
  app.add_option("--device", options.device);
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--tensor-host", options.tensor_host, "address to listen on for other hosts");
  app.add_flag("--cuda-graphs", options.cuda_graphs,
               "record what a stage computes again and again");
  std::vector<std::string> model_plugins;
  app.add_option("--model-plugin", model_plugins, "shared library with models of a user's own");
  app.add_flag("--measure", options.measures, "tell the controller how fast the device is");
  app.add_option("--parent", parent, "pid of the node agent");
  CLI11_PARSE(app, argc, argv);
  troupe::runtime::begin_as_child(parent);
  options.token = troupe::runtime::take_secret("TROUPE_TOKEN");
  const std::string keys = troupe::runtime::take_secret("TROUPE_CONTROL_KEYS");
  // For tests: whether jobs are rehearsed (docs/gpu.md), whatever the device is.
  if (const char* rehearse = std::getenv("TROUPE_REHEARSE"))
    options.rehearses = std::string_view(rehearse) == "on";
  try {
    options.incarnation = troupe::runtime::take_incarnation();
    if (!keys.empty()) options.keys = troupe::control::client_keys_from(keys, "the node agent");
    own_id = options.id;
    otherwise = std::set_terminate(on_terminate);
    at::set_num_threads(options.threads);
    at::set_num_interop_threads(1);
    for (const auto& file : model_plugins) {
      troupe::spec::open_model_plugin(file);
      troupe::models::open_network_plugin(file);
    }
    troupe::actors::ActorProcess actor(options);
    troupe::runtime::leave(actor.run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "troupe-actor %u: %s\n", options.id,
                 troupe::first_line(troupe::text_of(error)).c_str());
    troupe::runtime::leave(1);
  }
}
