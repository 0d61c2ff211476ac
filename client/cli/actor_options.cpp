#include "client/cli/actor_options.h"

#include "base/choices.h"
#include "base/format.h"
#include "base/suggest.h"
#include "client/cli/options.h"
#include "client/cli/verb.h"
#include "models/spec/gguf.h"
#include "models/spec/hub.h"
#include "models/spec/model_plugin.h"
#include "models/spec/torch_file.h"
#include "models/text/tokenizers.h"

#include <filesystem>
#include <optional>
#include <vector>

namespace troupe::cli {
namespace {

constexpr int kMostActors = 1024;

/// Checks --device. Torch's and other tools' names of a GPU are refused with what is meant.
Check device_check() {
  static const auto kDevices = choice_words<DeviceKind>();
  return Check(
      [](std::string& text) -> std::string {
        if (text == "gpu" || text.starts_with("cuda:"))
          return "\"" + text +
                 "\" is not cpu or cuda; cuda takes the GPUs that "
                 "CUDA_VISIBLE_DEVICES lets it see";
        return one_of(kDevices)(text);
      },
      kDevices);
}

}  // namespace

Option* add_model_option(Options& app, std::string& folder, const std::string& help) {
  return app.add_option("-m,--model", folder, help)->type_name("DIR|NAME");
}

Option* add_actors_option(Options& app, int& actors, int least, const std::string& help) {
  return app.add_option("--actors", actors, help)
      ->check(whole(least, kMostActors))
      ->type_name("N")
      ->capture_default_str();
}

Option* add_device_option(Options& app, std::string& device, const std::string& help) {
  app.add_rivals({"--device", "--cuda-graphs", "--actors-per-gpu"});
  return app.add_option("--device", device, help)
      ->check(device_check())
      ->type_name("NAME")
      ->capture_default_str();
}

void add_threads_option(Options& app, int& threads) {
  app.add_option("--threads-per-actor", threads, "Threads that an actor computes with")
      ->check(whole(1, 4096))
      ->type_name("T")
      ->capture_default_str();
}

void add_pin_option(Options& app, std::string& how) {
  app.add_option("--pin", how,
                 "Keep each actor, and what it allocates, to one NUMA node (numa), or to none")
      ->check(one_of({"none", "numa"}))
      ->type_name("HOW")
      ->capture_default_str();
}

void add_prompt_cache_option(Options& app, std::uint64_t& bytes) {
  app.add_option_function<double>(
         "--prompt-cache",
         [&bytes](double megabytes) { bytes = static_cast<std::uint64_t>(megabytes * 1e6); },
         fmt::format("Encoded prompts that each actor with text encoders keeps for a deployment, "
                     "in MB of 10^6 bytes of host memory; 0 = none (default: {})",
                     bytes / 1'000'000))
      ->check(number(0, 1e6))
      ->type_name("MB");
}

void add_cuda_graphs_option(Options& app, bool& on) {
  app.add_option_function<std::string>(
         "--cuda-graphs", [&on](const std::string& word) { on = word == "on"; },
         "With --device cuda: record what a stage computes again and again, and replay it "
         "(docs/gpu.md)")
      ->restored_by([&on, before = on] { on = before; })
      ->check(one_of({"on", "off"}))
      ->type_name("on|off")
      ->default_str("off");
}

void check_cuda_graphs(bool on, const std::string& device) {
  if (on && device != "cuda")
    throw UsageError("--cuda-graphs on goes with --device cuda: a CPU has no such graphs");
}

void add_actors_per_gpu_option(Options& app, int& actors) {
  app.add_option("--actors-per-gpu", actors,
                 "With --device cuda: actors that share a GPU and its memory; more than 1 is for "
                 "tests, since they only take turns (docs/gpu.md)")
      ->check(whole(1, 64))
      ->type_name("N")
      ->capture_default_str();
}

void check_actors_per_gpu(int actors, const std::string& device) {
  if (actors > 1 && device != "cuda")
    throw UsageError("--actors-per-gpu goes with --device cuda: a CPU is shared anyway");
}

void add_keep_logs_option(Options& app, std::string& folder) {
  app.add_option("--keep-logs", folder, "Keep the actors' log files in this folder")
      ->check(not_empty())
      ->type_name("DIR");
}

void add_task_deadline_option(Options& app, std::chrono::seconds& deadline) {
  app.add_option_function<std::int64_t>(
         "--task-deadline",
         [&deadline](std::int64_t seconds) { deadline = std::chrono::seconds(seconds); },
         fmt::format("Seconds, 1 to 86400, without any progress after which an actor that has "
                     "tasks is taken for hanging and killed (default: {})",
                     deadline.count()))
      ->check(whole(1, 86400))
      ->type_name("SECONDS");
}

void add_memory_limit_option(Options& app, std::uint64_t& bytes) {
  app.add_option_function<double>(
         "--memory-limit",
         [&bytes](double gigabytes) { bytes = static_cast<std::uint64_t>(gigabytes * 1e9); },
         "Memory that an actor's models and jobs may take, in GB of 10^9 bytes "
         "(default: nine tenths of what is free at start, on a CPU shared by the actors)")
      ->check(number(1e-6, 1e6))
      ->type_name("GB");
}

namespace fs = std::filesystem;

void add_model_plugin_option(Options& app) {
  const Check open([](std::string& file) -> std::string {
    try {
      spec::open_model_plugin(file);
      return "";
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  });
  app.add_option_function<std::vector<std::string>>(
         "--model-plugin", [](const std::vector<std::string>&) {},
         "Shared library with models or samplers of your own, whose code this process and its "
         "actors run (repeatable; docs/adding-a-model.md)")
      ->check(not_empty())
      ->check(open)
      ->type_name("FILE");
}

spec::ModelSpec read_model_folder(const std::string& folder) {
  try {
    return naming("--model", [&] { return models::read_model_folder(folder); });
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(error.what() + model_hint(folder));
  }
}

namespace {

/// Returns the name of a model that the Hugging Face cache has, all of it or not: by the name, or
/// by the folder of its snapshot.
std::optional<spec::HubName> cached_name(const std::string& text) {
  const fs::path path = fs::path(text).lexically_normal();
  const bool is_snapshot = path.parent_path().filename() == "snapshots";
  auto name = spec::hub_name(is_snapshot ? spec::model_label(text) : text);
  if (!name || (!is_snapshot && fs::exists(path))) return std::nullopt;
  const auto own = spec::cached_model(*name);
  if (!own) return std::nullopt;
  if (is_snapshot && own->filename() != path.filename()) name->revision = path.filename();
  return name;
}

}  // namespace

std::string model_hint(const std::string& folder) {
  std::error_code error;
  if (const auto name = cached_name(folder))
    return "; `" + spec::fetch_command(*name) +
           "` fetches what the Hugging Face cache lacks of it, as --fetch does where a command has "
           "that";
  if (fs::is_directory(folder, error)) return "";
  if (fs::exists(folder, error)) {
    const std::string file = ": it is a file, and a model is a folder in diffusers' layout";
    if (spec::is_weight_file(folder) || spec::is_torch_name(folder))
      return file +
             "; `troupe run --model FILE --base DIR|NAME`, as start and serve, takes it with "
             "the other parts of the model that --base names (docs/files.md)";
    return file;
  }
  const fs::path here = fs::current_path(error);
  std::vector<std::string> known;
  for (const auto& model : spec::known_models())
    known.emplace_back(model.name);
  return did_you_mean(fs::path(folder).lexically_relative(here).string(), known);
}

}  // namespace troupe::cli
