#pragma once
#include <chrono>
#include <cstdint>
#include <string>

#include "client/cli/options.h"

namespace troupe::spec {
struct ModelSpec;
}

namespace troupe::cli {

// What the verbs that start actors have in common.

/// `--model DIR|NAME`, with what it is for there.
Option* add_model_option(Options& app, std::string& folder, const std::string& help);
/// `--actors N`, from `least` on.
Option* add_actors_option(Options& app, int& actors, int least, const std::string& help);
/// `--device cpu|cuda`.
Option* add_device_option(Options& app, std::string& device,
                          const std::string& help = "What actors compute on: cpu or cuda");
/// `--threads-per-actor T`.
void add_threads_option(Options& app, int& threads);
/// `--pin none|numa`.
void add_pin_option(Options& app, std::string& how);
/// `--prompt-cache MB`, in bytes.
void add_prompt_cache_option(Options& app, std::uint64_t& bytes);
/// `--cuda-graphs on|off`.
void add_cuda_graphs_option(Options& app, bool& on);
/// Throws UsageError where the actors have no GPU to record on.
void check_cuda_graphs(bool on, const std::string& device);
/// `--actors-per-gpu N`.
void add_actors_per_gpu_option(Options& app, int& actors);
/// Throws UsageError where the actors have no GPU to share.
void check_actors_per_gpu(int actors, const std::string& device);
/// `--keep-logs DIR`.
void add_keep_logs_option(Options& app, std::string& folder);
/// `--task-deadline SECONDS`; untouched where it is not given.
void add_task_deadline_option(Options& app, std::chrono::seconds& deadline);
/// `--memory-limit GB`, of an actor, in bytes; untouched where it is not given.
void add_memory_limit_option(Options& app, std::uint64_t& bytes);

/// `--model-plugin FILE`, repeatable: opened as soon as it is read. Before options that know what
/// plugins bring.
void add_model_plugin_option(Options& app);

/// The model in the folder that --model names. Throws std::runtime_error that names the option.
spec::ModelSpec read_model_folder(const std::string& folder);

/// Returns what else the name of a folder that does not exist may be ("; …": a file, or a short
/// name mistyped), or "". `folder`: an absolute path.
std::string model_hint(const std::string& folder);

}  // namespace troupe::cli
