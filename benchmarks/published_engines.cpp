#include "benchmarks/published_engines.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "benchmarks/published_models.h"
#include "controller/plan/layout.h"

namespace troupe::published {
namespace {

const Constants kEngines = {
    {"eager operation, µs", 25},
    {"call, µs", 60},
    {"message, µs", 50},
    {"captured operation, µs", 3},
    {"operations with breaks", 0.65},
    {"operations compiled", 0.3},
    {"elementwise compiled", 0.5},
    {"operations of a ring's part", 4},
};

/// xDiT as its code is: two copies of all K,V in a patch's attention, ceiling division of the
/// blocks, a device synchronisation before and after each end of a message, Python between
/// operations, and no kernel of a transfer beside one of attention.
plan::Engine engine_of(const Table& table, const Constants& constants) {
  const bool unet = table.model == "sdxl";
  const double captured = constants.at("captured operation, µs");
  const double eager = constants.at("eager operation, µs");
  const bool graphs = table.runtime == Runtime::captured;
  return {.kv_copies = unet ? 0.0 : 2.0,
          .text_with_every_patch = table.model == "flux",
          .parts_of_batch = false,
          .ceiling_stages = true,
          .message_overhead = constants.at("message, µs") * 1e-6,
          .launch_factor = (graphs ? captured : eager) / 5,
          .call_overhead = graphs ? 0 : constants.at("call, µs") * 1e-6,
          .operations_per_part = constants.at("operations of a ring's part"),
          .overlaps = false};
}

/// Counts of one block in diffusers' code (0.30): the kernels that it launches, and the tensors of
/// a token's width that they read or write beside the products.
struct Counted {
  int operations;
  double elementwise;
};

Counted counted(const std::string& model) {
  static const std::map<std::string, Counted> known = {
      {"pixart", {35, 37}},   // scale, shift and gate one by one; two divisions by 1
      {"sd3", {47, 40}},      // two streams
      {"flux", {66, 95}},     // 19 blocks of 96, 38 of 51; norms and rotation of q, k in float32
      {"hunyuan", {72, 110}}  // three norms, rotation and half of the skips in float32
  };
  const auto found = known.find(model);
  return found != known.end() ? found->second : Counted{66, 95};  // written like FLUX
}

/// Returns the shape of a folder as published, with its text encoder and VAE.
plan::ModelShape read_shape(const std::string& model) {
  wire::ImageRequest request;
  request.prompts = {""};
  request.max_sequence_length = model == "sdxl" ? 77 : model == "flux" ? 256 : 120;
  return plan::shape_of(model_of(model), request);
}

plan::ModelShape transformer(int layers, double width, int heads, double squares, bool joint,
                             int text) {
  plan::ModelShape shape;
  shape.layers = layers;
  shape.width = width;
  shape.heads = heads;
  shape.joint = joint;
  shape.text_tokens = text;
  shape.weights_per_block = squares * width * width;
  if (joint) shape.sums_per_block = 2;
  return shape;
}

plan::ModelShape transformer_of(const std::string& model) {
  if (model == "pixart") return transformer(28, 1152, 16, 14, false, 120);
  if (model == "sd3") return transformer(24, 1536, 24, 12, true, 333);
  if (model == "flux") return transformer(57, 3072, 24, 12, true, 256);          // 19 and 38 blocks
  if (model == "flux.2-klein") return transformer(25, 3072, 24, 17, true, 512);  // 5 and 20
  if (model == "z-image") return transformer(30, 3840, 30, 12, true, 128);
  if (model == "qwen-image") return transformer(60, 3072, 24, 12, true, 128);
  if (model == "wan-14b") return transformer(40, 5120, 40, 11.4, false, 512);
  if (model != "hunyuan") throw std::invalid_argument("[planner_error] no shape of " + model);
  auto shape = transformer(40, 1408, 16, 15.7, false, 333);
  for (int block = 0; block < shape.layers; ++block)  // a skip of two squares
    shape.skip_from.push_back(block > shape.layers / 2 ? shape.layers - 1 - block : -1);
  return shape;
}

plan::ModelShape shape_of(const Table& table, const Constants& constants) {
  plan::ModelShape shape;
  if (table.model == "sdxl") {
    shape = read_shape("sdxl");
    shape.operations_per_block *= 2;  // ours are fused
  } else {
    shape = transformer_of(table.model);
    const auto block = counted(table.model);
    shape.operations_per_block = block.operations;
    shape.elementwise_per_block = block.elementwise;
    if (table.around) {
      const auto whole = read_shape(table.model);
      shape.text_flops = whole.text_flops;
      shape.decoder_flops = whole.decoder_flops;
      shape.decoder_convolutions = whole.decoder_convolutions;
      shape.vae_attention_width = whole.vae_attention_width;
    }
  }
  const bool breaks = table.runtime == Runtime::graph_breaks;
  if (breaks || table.runtime == Runtime::compiled) {
    shape.operations_per_block =
        static_cast<int>(shape.operations_per_block *
                         constants.at(breaks ? "operations with breaks" : "operations compiled"));
    shape.elementwise_per_block *= constants.at("elementwise compiled");
  }
  return shape;
}

bool guided(const std::string& model) {
  return model != "flux" && model != "flux.2-klein" && model != "z-image";
}

plan::JobShape job_of(const Table& table, int pixels, Method method, int patches, int warmup) {
  plan::JobShape job;
  const bool video = table.model == "wan-14b", unet = table.model == "sdxl";
  // 832 × 480 × 81: 21 frames of latents.
  const int rows = video ? 21 * 30 : unet ? pixels / 8 : pixels / 16;
  job.method = method;
  job.dtype = ComputeType::float16;
  job.patches = plan::split_rows(rows, patches);
  job.columns = video ? 52 : rows;
  job.patch_size = unet ? 1 : 2;
  job.latent_channels = table.model == "pixart" || table.model == "hunyuan" || unet ? 4 : 16;
  job.guidance = guided(table.model);
  job.steps = table.steps;
  job.synchronous_steps = method == Method::exact ? table.steps : std::min(warmup, table.steps);
  job.decodes = table.around;
  return job;
}

/// The raw rate of a GPU's link, bytes/s a direction.
double raw_link(const std::string& machine) {
  if (machine == "h100-nvlink") return 450e9;
  if (machine == "a100-nvlink") return 300e9;
  return machine == "t4" ? 15.75e9 : 31.5e9;
}

/// The machine of a table with what a refit has found.
plan::Machine machine_of(const Table& table, const Constants& constants) {
  auto machine = plan::machine_of(table.machine);
  if (!constants.contains("PCIe")) return machine;  // no refit
  static const std::map<std::string, double> peaks = {
      {"l40", 181e12}, {"l20", 119.5e12}, {"t4", 65e12}, {"a100", 312e12}, {"h100", 989e12}};
  const auto gpu = table.machine.substr(0, table.machine.find('-'));
  const bool nvlink = table.machine.ends_with("nvlink");
  machine.device.half_flops = peaks.at(gpu) * constants.at("products, " + gpu);
  machine.device.attention_share = constants.at("attention ÷ products, " + gpu);
  machine.device.launch = 5e-6;
  if (gpu == "a100" || gpu == "h100") machine.device.launch *= constants.at("slow hosts");
  const bool staged = table.machine == "a100-pcie";
  machine.inside.bandwidth = raw_link(table.machine) * constants.at(nvlink ? "NVLink" : "PCIe") *
                             (staged ? constants.at("PCIe through the host") : 1);
  machine.inside.latency = 1e-6 * constants.at(nvlink ? "NVLink, µs" : "PCIe, µs");
  if (machine.devices_per_socket > 0)
    machine.across_sockets = constants.at("all-to-all between sockets");
  return machine;
}

}  // namespace

const Constants& engine_constants() {
  return kEngines;
}

Constants data_sheets() {
  Constants constants = {{"PCIe", 0.8},
                         {"NVLink", 0.8},
                         {"PCIe through the host", 1},
                         {"PCIe, µs", 20},
                         {"NVLink, µs", 10},
                         {"all-to-all between sockets", 1},
                         {"slow hosts", 1},
                         {"eager operation, µs", 10},
                         {"call, µs", 20},
                         {"message, µs", 100},
                         {"captured operation, µs", 3},
                         {"operations with breaks", 1},
                         {"operations compiled", 0.5},
                         {"elementwise compiled", 1},
                         {"operations of a ring's part", 2}};
  for (const char* gpu : {"l40", "l20", "t4", "a100", "h100"}) {
    constants[std::string("products, ") + gpu] = 0.55;
    constants[std::string("attention ÷ products, ") + gpu] = 1;
  }
  return constants;
}

Simulation::Simulation(const Table& table, const Constants& constants)
    : table_(table),
      model_(shape_of(table, constants)),
      machine_(machine_of(table, constants)),
      engine_(engine_of(table, constants)) {}

Prediction Simulation::predict(int pixels, const Run& run) const {
  Prediction best;
  const int n = run.devices;
  const int patched = n / run.cfg;
  if (run.how == "one") consider(best, pixels, Method::exact, 1, 1, {});
  if (run.how == "tp") consider(best, pixels, Method::exact, 1, 1, {.tp = n});
  if (run.how == "ulysses") consider(best, pixels, Method::exact, 1, 1, {.ulysses = n});
  if (run.how == "ring") consider(best, pixels, Method::exact, 1, 1, {.ring = n});
  if (run.how == "usp")
    consider(best, pixels, Method::exact, 1, 1, {.ring = run.ring, .ulysses = run.ulysses});
  if (run.how == "distrifusion") {
    consider(best, pixels, Method::distrifusion, patched, run.warmup,
             {.cfg = run.cfg, .ring = patched});
  }
  if (run.how == "silent" || run.how == "naive") {
    consider(best, pixels, Method::distrifusion, n, 0, {.ring = n},
             run.how == "naive" ? PatchExchange::naive : PatchExchange::none);
  }
  if (run.how == "synchronous")
    consider(best, pixels, Method::distrifusion, n, table_.steps, {.ring = n});
  if (run.how == "pipefusion") {
    const int stages = patched / (run.ulysses * run.ring);
    consider_patches(best, pixels, run.warmup,
                     {.cfg = run.cfg, .pp = stages, .ring = run.ring, .ulysses = run.ulysses});
  }
  if (run.how == "best") consider_all(best, pixels, n);
  return best;
}

void Simulation::consider(Prediction& best, int pixels, Method method, int patches, int warmup,
                          const mesh::Degrees& degrees, PatchExchange exchange) const {
  auto job = job_of(table_, pixels, method, patches, warmup);
  job.alone = exchange == PatchExchange::naive;
  job.tells = exchange == PatchExchange::stale;
  auto machine = machine_;
  machine.devices = degrees.world();
  const double seconds = plan::estimate_cost(model_, job, degrees, 1, machine, engine_).total();
  if (seconds >= best.seconds) return;
  best.seconds = seconds;
  best.mix.clear();
  const auto name = [&best](const char* axis, int degree) {
    if (degree > 1) best.mix.append(axis).append(std::to_string(degree)).append(" ");
  };
  name("cfg", degrees.cfg), name("pp", degrees.pp), name("u", degrees.ulysses);
  name("r", degrees.ring), name("tp", degrees.tp), name("M", patches);
}

/// Considers the numbers of patches of xDiT's benchmark: half as many as stages, as many, twice as
/// many.
void Simulation::consider_patches(Prediction& best, int pixels, int warmup,
                                  const mesh::Degrees& degrees) const {
  if (degrees.pp == 1) return consider(best, pixels, Method::exact, 1, 1, degrees);
  for (const int patches : {degrees.pp / 2, degrees.pp, 2 * degrees.pp}) {
    if (patches > 1) consider(best, pixels, Method::pipefusion, patches, warmup, degrees);
  }
}

void Simulation::consider_all(Prediction& best, int pixels, int devices) const {
  // Few steps are no work for PipeFusion, and the other engines have none.
  const int most_stages = table_.steps < 10 ? 1 : devices;
  for (int cfg = 1; cfg <= (guided(table_.model) ? 2 : 1); ++cfg) {
    for (int pp = 1; cfg * pp <= devices && pp <= most_stages; ++pp) {
      for (int ulysses = 1; cfg * pp * ulysses <= devices; ++ulysses) {
        if (devices % (cfg * pp * ulysses) != 0 || model_.heads % ulysses != 0) continue;
        const mesh::Degrees degrees{
            .cfg = cfg, .pp = pp, .ring = devices / (cfg * pp * ulysses), .ulysses = ulysses};
        if (pp == 1) consider(best, pixels, Method::exact, 1, 1, degrees);
        if (pp > 1) consider_patches(best, pixels, 1, degrees);
      }
    }
  }
}

std::vector<Table> all_tables() {
  auto all = tables();
  for (const auto& more : {compiled_tables(), unet_tables(), engine_tables()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

void Errors::add(const Errors& more) {
  of_rows.insert(of_rows.end(), more.of_rows.begin(), more.of_rows.end());
}

double Errors::median() const {
  auto sizes = of_rows;
  for (double& size : sizes)
    size = std::abs(size);
  std::sort(sizes.begin(), sizes.end());
  const auto middle = sizes.size() / 2;
  return sizes.size() % 2 == 1 ? sizes[middle] : (sizes[middle - 1] + sizes[middle]) / 2;
}

double Errors::mean() const {
  double logarithms = 0;
  for (const double error : of_rows)
    logarithms += std::log1p(error);
  return std::expm1(logarithms / static_cast<double>(of_rows.size()));
}

double Errors::worst() const {
  return *std::max_element(of_rows.begin(), of_rows.end(),
                           [](double a, double b) { return std::abs(a) < std::abs(b); });
}

long Errors::beyond(double bound) const {
  return std::count_if(of_rows.begin(), of_rows.end(),
                       [bound](double error) { return std::abs(error) > bound; });
}

}  // namespace troupe::published
