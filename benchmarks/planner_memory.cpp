// Memory of an actor as the planner predicts it: of published models at 1 to 16 actors, and beside
// the memory that PipeFusion's authors published. With folders as arguments, of those instead.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/published_models.h"
#include "controller/plan/planner.h"

namespace {

using namespace troupe;

constexpr int kActors[] = {1, 2, 4, 8, 16};

wire::ImageRequest request_of(double guidance, int pixels = 0) {
  wire::ImageRequest request;
  request.prompts = {""};
  request.dtype = ComputeType::bfloat16;
  request.guidance_scale = guidance;
  request.height = request.width = pixels;
  request.max_sequence_length = 0;
  return request;
}

struct Need {
  std::uint64_t peak = 0;  // bytes, of the fullest actor
  wire::Parallelism mix;
};

std::optional<plan::Plan> planned(const spec::ModelSpec& model, const wire::ImageRequest& request,
                                  const wire::Parallelism& mix) {
  try {
    return plan::make_plan(model, request, mix);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

/// Returns, among the mixes of exactly `actors` actors, the one whose fullest actor needs least.
std::optional<Need> least(const spec::ModelSpec& model, const wire::ImageRequest& request,
                          int actors) {
  std::optional<Need> best;
  wire::Parallelism mix;
  for (mix.cfg = 1; mix.cfg <= 2; ++mix.cfg) {
    for (mix.pp = 1; mix.cfg * mix.pp <= actors; ++mix.pp) {
      for (mix.tp = 1; mix.cfg * mix.pp * mix.tp <= actors; ++mix.tp) {
        const int stage = mix.cfg * mix.pp * mix.tp;
        for (mix.ulysses = 1; stage * mix.ulysses <= actors; ++mix.ulysses) {
          if (actors % (stage * mix.ulysses) != 0) continue;
          mix.ring = actors / (stage * mix.ulysses);
          for (const int decoders : {1, actors}) {
            mix.vae = decoders;
            const auto plan = planned(model, request, mix);
            if (!plan) continue;
            std::uint64_t peak = 0;
            for (const auto& actor : plan->memory)
              peak = std::max(peak, actor.peak());
            if (!best || peak < best->peak) best = {peak, mix};
          }
        }
      }
    }
  }
  return best;
}

double gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

void print_row(const std::string& name, const spec::ModelSpec& model, wire::ImageRequest request) {
  if (model.inputs.needs_images)
    request.images = {{.bytes = 1 << 20, .height = 1080, .width = 1920}};
  const auto single = plan::make_plan(model, request, {});
  std::string size =
      std::to_string(single.request.width) + " x " + std::to_string(single.request.height);
  if (single.request.num_frames > 1) size += " x " + std::to_string(single.request.num_frames);
  std::printf("%-16s %-15s", name.c_str(), size.c_str());
  std::string mixes;
  for (const int actors : kActors) {
    const auto need = least(model, request, actors);
    std::printf(" %8.2f", need ? gib(need->peak) : 0.0);
    if (!need || actors == 1) continue;
    mixes += (mixes.empty() ? "  " : "; ") + plan::to_text(need->mix);
    if (need->mix.vae > 1) mixes += ", vae " + std::to_string(need->mix.vae);
  }
  std::printf("%s\n", mixes.c_str());
}

/// The text encoders as xDiT keeps them on every GPU: in 16 bits, but of a T5 in float16 one
/// product of each feed-forward in float32, as transformers loads it (`_keep_in_fp32_modules`).
/// xDiT runs FLUX.1 in bfloat16. `eight_bits`: T5 with --use_fp8_t5_encoder.
std::uint64_t kept_encoders(const spec::ModelSpec& model, bool bfloat16, bool eight_bits) {
  std::uint64_t bytes = 0;
  for (const auto& encoder : model.text_encoders) {
    const bool t5 = std::holds_alternative<spec::T5Spec>(encoder.config);
    for (const auto& entry : encoder.weights.tensors()) {
      const std::uint64_t elements = entry.elements();
      const bool single = t5 && !bfloat16 && entry.name.ends_with("DenseReluDense.wo.weight");
      bytes += elements * (t5 && eight_bits ? 1 : single ? 4 : 2);
    }
  }
  return bytes;
}

/// Memory in PipeFusion's paper, section 4.1.2: the most GB of a GPU, 8 GPUs, 16 bits, without the
/// VAE; text encoders are on every GPU. 0 = not printed.
struct PublishedMemory {
  const char* model;
  int pixels;
  double one, sequence, pipefusion, cfg_pipefusion, tensor, distrifusion;
};
constexpr PublishedMemory kPublished[] = {
    {"pixart", 1024, 13.10, 12.99, 13.00, 12.32, 12.30, 15.28},
    {"pixart", 4096, 16.60, 13.78, 13.98, 16.14, 14.02, 51.02},
    {"sd3", 1024, 17.93, 17.67, 14.49, 14.85, 0, 0},
    {"sd3", 2048, 18.92, 17.87, 16, 15.88, 0, 0},
    {"flux", 1024, 34.21, 33.86, 10.89, 0, 0, 0},
    {"flux", 2048, 35.43, 34.07, 12.34, 0, 0, 0},
};

/// DistriFusion: what arrives of other ranks lies beside two kept versions here, and in the older
/// of them in xDiT.
std::uint64_t arriving(const plan::Plan& plan, const spec::ModelSpec& model) {
  if (plan.request.method != Method::distrifusion) return 0;
  const std::uint64_t ring = plan.degrees.ring;
  const std::uint64_t tokens = plan.token_rows * plan.token_columns;
  return model.transformer.num_layers * 2 * plan.branches_per_actor() * 2 *
         model.transformer.inner_dim() * tokens * (ring - 1) / ring;
}

void print_published(const PublishedMemory& row) {
  const auto model = published::model_of(row.model);
  const bool flux = row.model == std::string("flux");
  const auto print = [&](const char* how, double published, Method method, int patches,
                         const wire::Parallelism& mix) {
    if (published == 0) return;
    auto request = request_of(published::guidance_of(row.model), row.pixels);
    request.method = method;
    request.num_pipeline_patch = patches;
    request.warmup_steps = 1;
    const auto plan = plan::make_plan(model, request, mix);
    // FLUX.1's stages of 24 GB ÷ 8 and more leave no room for T5 in 16 bits in what was published.
    const bool eight_bits = flux && method == Method::pipefusion;
    const auto encoders = kept_encoders(model, flux, eight_bits);
    std::uint64_t own = 0;  // without the VAE, as the published ones are
    std::uint64_t beside = 0;
    for (const auto& actor : plan.memory) {
      const auto network = actor.weights + actor.kv + actor.activations;
      own = std::max({own, network, actor.weights + actor.text});
      beside = std::max(beside, network - arriving(plan, model) + encoders);
    }
    std::printf("%-8s %-6d %-22s %10.2f %10.2f %14.2f %+7.0f%%\n", row.model, row.pixels, how,
                published, static_cast<double>(own) / 1e9, static_cast<double>(beside) / 1e9,
                100 * (static_cast<double>(beside) / 1e9 / published - 1));
  };
  print("one GPU", row.one, Method::exact, 1, {});
  print("ulysses 8", row.sequence, Method::exact, 1, {.ulysses = 8});
  print("pipefusion 8", row.pipefusion, Method::pipefusion, 8, {.pp = 8});
  print("cfg 2, pipefusion 4", row.cfg_pipefusion, Method::pipefusion, 4, {.cfg = 2, .pp = 4});
  print("tp 8", row.tensor, Method::exact, 1, {.tp = 8});
  print("distrifusion 8", row.distrifusion, Method::distrifusion, 8, {.ring = 8});
}

int run(const std::vector<std::string>& folders) {
  std::printf("GiB of the fullest actor, exact, bfloat16, by the mix that needs least\n");
  std::printf("%-16s %-15s %8d %8d %8d %8d %8d  mixes at 2; 4; 8; 16\n", "model", "size", 1, 2, 4,
              8, 16);
  for (const auto& folder : folders)
    print_row(folder.c_str(), spec::read_model_spec(folder), request_of(5));
  if (!folders.empty()) return 0;
  for (const char* name :
       {"pixart", "sd3", "sd3.5-large", "flux", "chroma", "ovis", "longcat", "hunyuan", "sdxl",
        "wan-1.3b", "wan-14b", "wan-i2v", "wan2.2-5b", "wan2.2-a14b", "wan2.2-i2v"})
    print_row(name, published::model_of(name), request_of(published::guidance_of(name)));
  std::printf("\n%-8s %-6s %-22s %10s %10s %14s %8s\n", "model", "pixels", "8 GPUs, by",
              "published", "predicted", "with encoders", "error");
  for (const auto& row : kPublished)
    print_published(row);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  CLI::App app{"Memory of an actor by plan: published models, beside published figures",
               "planner_memory"};
  app.add_option("MODEL", folders, "Model folders, instead of the published models");
  return troupe::bench::run_program(app, argc, argv, [&] { return run(folders); });
}
