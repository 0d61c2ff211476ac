#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <utility>

#include "base/choices.h"
#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/named_model.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "models/image/clip_text.h"
#include "models/image/limits.h"
#include "models/image/png_text.h"
#include "models/spec/gguf.h"
#include "models/spec/hub.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/torch_file.h"
#include "models/spec/weight_index.h"
#include "models/text/tokenizers.h"
#ifdef TROUPE_WITH_PLAN
#include "client/convert.h"
#include "controller/plan/plan.h"
#endif

namespace troupe::cli {
namespace {

nlohmann::json part_json(const std::string& name, const std::string& kind,
                         const spec::WeightIndex& weights) {
  std::map<std::string, std::uint64_t> bytes;
  std::uint64_t numbers = 0;
  for (const spec::TensorEntry& tensor : weights.tensors()) {
    bytes[std::string(spec::dtype_name(tensor.dtype))] += tensor.bytes();
    numbers += tensor.elements();
  }
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; });
  return {{"name", name},
          {"kind", kind},
          {"parameters", numbers},
          {"tensors", weights.tensors().size()},
          {"dtype", most == bytes.end() ? "" : most->first},
          {"bytes", weights.bytes()}};
}

/// Returns the values of the fields that a request leaves open.
nlohmann::json defaults_json(const spec::ModelSpec& model) {
  const auto of = [](const spec::CallDefaults& task) {
    return nlohmann::json{{"steps", task.steps}, {"guidance_scale", task.guidance_scale}};
  };
  auto out = of(model.defaults.generation);
  if (model.from_text_alone) return out;
  for (const auto& [name, task] : {std::pair("init_image", &model.defaults.from_picture),
                                   {"mask_image", &model.defaults.inpainting}}) {
    out[name] = of(*task);
    out[name]["strength"] = task->strength;
  }
  return out;
}

/// Returns what a model takes beside the text and a picture to begin with.
nlohmann::json inputs_json(const spec::ModelSpec& model) {
  const auto& inputs = model.inputs;
  return {{"most_images", inputs.most_images},
          {"needs_images", inputs.needs_images},
          {"needs_mask", inputs.beside_mask()},
          {"first_frame", inputs.images == spec::PictureRole::first_frame},
          {"last_image", inputs.last_image},
          {"needs_last_image", inputs.needs_last_image},
          {"control_images", model.control_pictures()},
          {"controlnets", inputs.controlnets},
          {"guidance_scale_2", inputs.second_guidance}};
}

/// Returns the options by which a model takes these; empty where it takes nothing.
std::string inputs_text(const nlohmann::json& inputs) {
  std::string text;
  const auto add = [&](const std::string& words) { text += (text.empty() ? "" : "; ") + words; };
  if (inputs["first_frame"]) {
    add("--image, a video's first frame");
  } else if (const int most = inputs["most_images"]; most > 0) {
    add("--image, " + (most == 1 ? "a picture" : fmt::format("up to {} pictures", most)) +
        " to edit");
  }
  if (inputs["needs_images"]) text += ", which it needs";
  if (inputs["needs_mask"]) add("--init-image and --mask, which it needs");
  if (inputs["last_image"]) add("--last-image");
  if (inputs["needs_last_image"]) text += ", which it needs";
  if (const int needed = inputs["control_images"]; needed > 0)
    add("--control-image, which it needs" + (needed == 1 ? "" : fmt::format(" {} times", needed)));
  if (inputs["controlnets"]) add("--controlnet with --control-image");
  if (inputs["guidance_scale_2"]) add("--guidance-2");
  return text;
}

std::string defaults_text(const nlohmann::json& of) {
  auto text = fmt::format("{} steps, guidance {}", of["steps"].get<int>(),
                          number_text(of["guidance_scale"].get<double>()));
  if (of.contains("strength")) text += ", strength " + number_text(of["strength"].get<double>());
  return text;
}

#ifdef TROUPE_WITH_PLAN
/// Adds what a plan says: memory per actor, and the possible degrees and methods.
void add_plans(const spec::ModelSpec& model, nlohmann::json& out) {
  Submission submission;
  submission.request.prompts = {""};
  wire::JobSpec job = client::to_wire(submission).value();
  if (model.inputs.needs_images) job.request.images = {{.bytes = 1}};
  if (model.inputs.needs_last_image) job.request.last_image.bytes = 1;
  job.request.control_images.assign(static_cast<std::size_t>(model.control_pictures()),
                                    {.bytes = 1});
  if (model.inputs.beside_mask()) job.request.init_image_bytes = job.request.mask_image_bytes = 1;
  const auto planned = [&](const auto& change) -> std::optional<plan::Plan> {
    auto request = job.request;
    auto degrees = job.parallelism;
    change(request, degrees);
    try {
      return plan::make_plan(model, request, degrees);
    } catch (const std::invalid_argument&) {
      return std::nullopt;
    }
  };
  for (const auto type : {ComputeType::float32, ComputeType::bfloat16}) {
    const auto plan = planned([&](auto& request, auto&) { request.dtype = type; });
    if (plan) out["memory"][std::string(to_string(type))] = plan->memory.front().peak();
  }
  auto degrees = nlohmann::json::object();
  const int blocks = static_cast<int>(model.transformer.num_layers);
  // Qwen-Image has a second branch only beside a negative prompt.
  if (planned([](auto& request, auto& d) {
        request.negative_prompt = "";
        d.cfg = 2;
      }))
    degrees["cfg"] = 2;
  if (blocks > 1 && planned([&](auto&, auto& d) { d.pp = blocks; })) degrees["pp"] = blocks;
  const int heads = static_cast<int>(model.transformer.num_attention_heads);
  if (planned([&](auto&, auto& d) { d.ulysses = heads; })) degrees["ulysses"] = heads;
  if (planned([](auto&, auto& d) { d.ring = 2; })) degrees["ring"] = nullptr;
  if (planned([&](auto&, auto& d) { d.tp = heads; })) degrees["tp"] = heads;
  out["degrees"] = degrees;
  out["methods"] = {to_string(Method::exact)};
  for (const auto method : {Method::pipefusion, Method::distrifusion})
    if (planned([&](auto& request, auto&) {
          request.method = method;
          request.num_pipeline_patch = 2;
        }))
      out["methods"].push_back(to_string(method));
}
#endif

/// Returns what a model is; `name`: what it is called.
nlohmann::json model_json(const spec::ModelSpec& model, const std::string& name) {
  const auto& transformer = model.transformer;
  auto parts = nlohmann::json::array();
  parts.push_back(
      part_json(transformer.unet() ? "unet" : "transformer",
                fmt::format("{} blocks, {} heads of {}", transformer.num_layers,
                            transformer.num_attention_heads, transformer.attention_head_dim),
                model.transformer_weights));
  if (model.second_transformer)
    parts.push_back(part_json("transformer_2",
                              fmt::format("the same, in steps below timestep {}",
                                          number_text(model.second_transformer->boundary)),
                              model.second_transformer->weights));
  constexpr std::array kEncoders = {"T5", "CLIP", "BERT", "Qwen"};
  static_assert(kEncoders.size() == std::variant_size_v<decltype(spec::TextEncoderSpec::config)>);
  for (const auto& encoder : model.text_encoders)
    if (!encoder.absent)
      parts.push_back(
          part_json(encoder.component, kEncoders.at(encoder.config.index()), encoder.weights));
  parts.push_back(
      part_json("vae", model.makes_videos() ? "of videos" : "of pictures", model.vae_weights));
  nlohmann::json out = {{"folder", name},
                        {"pipeline", model.pipeline_class},
                        {"parts", parts},
                        {"width", model.default_width()},
                        {"height", model.default_size()},
                        {"frames", std::max<std::int64_t>(1, transformer.sample_frames)},
                        {"pixel_multiple", model.pixel_multiple()},
                        {"text_tokens", model.text_tokens},
                        {"defaults", defaults_json(model)},
                        {"inputs", inputs_json(model)},
                        {"scheduler", model.scheduler.class_name},
                        {"sampler", spec::sampler_name(model.scheduler, "")},
                        {"notes", model.notes}};
#ifdef TROUPE_WITH_PLAN
  add_plans(model, out);
#endif
  return out;
}

class InspectVerb : public Verb {
 public:
  explicit InspectVerb(Options& options) : Verb(options) {
    app_->add_option("FILE", file_,
                     "A .png, .mp4, .webm, .safetensors, .gguf, .ckpt, .pt or .bin file, or a "
                     "model's folder or name");
    set_footer("",
               {"troupe inspect out.png", "troupe inspect latents.safetensors --json",
                "troupe inspect MODELDIR"},
               "commands.md#inspect");
  }

  int run() override {
    if (file_.empty()) throw UsageError("inspect needs a FILE");
    std::error_code ignored;
    warn_of_shadow("", file_);
    if (!std::filesystem::exists(file_, ignored)) file_ = spec::model_folder(file_).string();
    if (std::filesystem::is_directory(file_, ignored)) return inspect_model();
    if (spec::is_weight_file(file_) || spec::is_torch_name(file_)) return inspect_tensors();
    return inspect_picture();
  }

 private:
  int inspect_picture() {
    models::PngText texts;
    std::optional<models::PngSize> size;  // of a picture
    const std::string bytes = read_file(file_, models::kMaxPictureBytes);
    try {
      texts = models::read_file_text(bytes);
      if (!models::is_video_file(bytes)) size = models::read_png_size(bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error(file_ + ": " + error.what());
    }
    if (json()) {
      nlohmann::json by_keyword = nlohmann::json::object();
      for (const auto& [keyword, text] : texts)
        by_keyword[keyword] = text;
      nlohmann::json document = {{"file", file_}, {"text", by_keyword}};
      if (size) document.update({{"width", size->width}, {"height", size->height}});
      print_json(document);
      return kOk;
    }
    std::cout << file_ << ": "
              << (size ? fmt::format("PNG, {} x {}", size->width, size->height) : "video") << "\n";
    if (texts.empty()) std::cout << "no parameters\n";
    for (const auto& [keyword, text] : texts)
      std::cout << on_one_line(keyword + ": " + text) << "\n";
    std::cout << std::flush;
    return kOk;
  }

  int inspect_tensors() {
    const auto index = spec::WeightIndex::read_file(file_);
    if (json()) {
      auto tensors = nlohmann::json::array();
      for (const spec::TensorEntry& tensor : index.tensors()) {
        tensors.push_back({{"name", tensor.name},
                           {"dtype", std::string(spec::dtype_name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"bytes", tensor.bytes()}});
      }
      print_json({{"file", file_},
                  {"bytes", index.bytes()},
                  {"tensors", tensors},
                  {"metadata", index.metadata()},
                  {"base", spec::base_of(index)}});
      return kOk;
    }
    std::vector<Row> rows;
    for (const spec::TensorEntry& tensor : index.tensors()) {
      rows.push_back({tensor.name, std::string(spec::dtype_name(tensor.dtype)),
                      spec::shape_text(tensor.shape)});
    }
    std::cout << file_ << ": " << counted(rows.size(), "tensor") << ", "
              << bytes_cell(index.bytes()) << "\n";
    if (const auto base = spec::base_of(index); !base.empty())
      std::cout << "the transformer or U-Net of " << base
                << ", which has the configs and other parts: `troupe run --model "
                << shell_word(file_) << " --base " << base << " \"a lighthouse\"`\n";
    std::cout << table({"NAME", "TYPE", "SHAPE"}, rows) << std::flush;
    return kOk;
  }

  int inspect_model() {
    const auto model = models::read_model_folder(file_);
    const auto document = model_json(model, file_);
    if (json()) {
      print_json(document);
    } else {
      print_model(document);
    }
    return kOk;
  }

  static void print_model(const nlohmann::json& model) {
    const auto line = [](const std::string& name, const std::string& text) {
      std::cout << fmt::format("  {:<16}{}\n", name, text);
    };
    std::cout << model["folder"].get<std::string>() << ": " << model["pipeline"].get<std::string>()
              << "\n";
    for (const auto& part : model["parts"])
      line(part["name"],
           fmt::format("{}; {:.1f} M parameters, {}, {}", part["kind"].get<std::string>(),
                       part["parameters"].get<double>() / 1e6, part["dtype"].get<std::string>(),
                       bytes_cell(part["bytes"].get<std::uint64_t>())));
    const int frames = model["frames"];
    line("size", fmt::format("{} × {}{}; multiples of {} pixels", model["width"].get<int>(),
                             model["height"].get<int>(),
                             frames > 1 ? fmt::format(", {} frames", frames) : "",
                             model["pixel_multiple"].get<int>()));
    line("text", fmt::format("{} tokens", model["text_tokens"].get<int>()));
    line("sampler", model["sampler"].get<std::string>());
    const auto& defaults = model["defaults"];
    line("default", defaults_text(defaults));
    if (defaults.contains("init_image"))
      line("", "with --init-image " + defaults_text(defaults["init_image"]));
    if (defaults.contains("mask_image"))
      line("", "with --mask " + defaults_text(defaults["mask_image"]));
    if (const auto takes = inputs_text(model["inputs"]); !takes.empty()) line("takes", takes);
    const auto listed = [&](const char* key) { return model.value(key, nlohmann::json()); };
    const auto by_type = listed("memory"), by_axis = listed("degrees"), by_name = listed("methods");
    std::string memory, degrees, methods;
    for (const auto& [type, bytes] : by_type.items())
      memory += fmt::format("{}{} in {}", memory.empty() ? "" : ", ",
                            bytes_cell(bytes.get<std::uint64_t>()), type);
    if (!memory.empty()) line("one actor", memory);
    for (const auto& [axis, most] : by_axis.items())
      degrees += (degrees.empty() ? "" : ", ") + axis +
                 (most.is_null() ? "" : fmt::format(" up to {}", most.get<int>()));
    if (!degrees.empty()) line("degrees", "dp, " + degrees);
    if (by_axis.contains("tp") || by_axis.contains("ulysses"))
      line("", "tp and ulysses divide the heads: beyond as many, actors idle in attention");
    for (const auto& method : by_name)
      methods += (methods.empty() ? "" : ", ") + method.get<std::string>();
    if (!methods.empty()) line("methods", methods);
    for (const auto& note : model["notes"])
      line("note", note.get<std::string>());
    std::cout << std::flush;
  }

  std::string file_;
};

/// `troupe models`: the models of this machine's Hugging Face cache, or those with short names.
class ModelsVerb : public Verb {
 public:
  explicit ModelsVerb(Options& options) : Verb(options) {
    app_->add_flag("--known", known_,
                   "The published models that have a short name, fetched or not");
    set_footer("What is listed is run by its name: `troupe run NAME \"a lighthouse\"`.",
               {"troupe models", "troupe models --known", "troupe models --json"},
               "models.md#a-model-by-its-name");
  }

  int run() override {
    known_ ? list_known() : list_cached();
    return kOk;
  }

 private:
  /// Returns whether the cache has a repository's model, with no link that leads out of it.
  static bool is_here(const std::string& repository) {
    try {
      return spec::cached_model({repository}).has_value();
    } catch (const std::runtime_error&) {
      return false;
    }
  }

  void list_known() const {
    auto documents = nlohmann::json::array();
    std::vector<Row> rows;
    for (const spec::KnownModel& model : spec::known_models()) {
      const std::string name(model.name), repository(model.repository), licence(model.licence);
      const bool here = is_here(repository);
      documents.push_back({{"name", name},
                           {"repository", repository},
                           {"licence", licence},
                           {"parameters", model.network * 1e9},
                           {"text_encoder_parameters", model.encoders * 1e9},
                           {"cached", here}});
      rows.push_back({name, repository, licence,
                      fmt::format("{:.1f} + {:.1f} B", model.network, model.encoders),
                      here ? "yes" : "no"});
    }
    print(documents, {"NAME", "REPOSITORY", "LICENCE", "PARAMETERS", "HERE"}, rows);
  }

  void list_cached() const {
    auto documents = nlohmann::json::array();
    std::vector<Row> rows, others;
    for (const spec::HubName& name : spec::cached_models()) {
      const std::string text = spec::hub_text(name);
      try {
        const auto document =
            model_json(models::read_model_folder(*spec::cached_model(name)), text);
        std::uint64_t bytes = 0;
        for (const auto& part : document["parts"])
          bytes += part["bytes"].get<std::uint64_t>();
        const auto memory = document.value("memory", nlohmann::json::object());
        rows.push_back({text, document["pipeline"], bytes_cell(bytes),
                        bytes_cell(memory.value("bfloat16", std::uint64_t{0}))});
        documents.push_back(document);
      } catch (const std::bad_alloc&) {
        throw;
      } catch (const std::exception& error) {
        others.push_back({text, one_line(error.what())});
        documents.push_back({{"folder", text}, {"error", others.back().back()}});
      }
    }
    print(documents, {"MODEL", "PIPELINE", "SIZE", "ONE ACTOR"}, rows);
    if (json()) return;
    if (documents.empty()) std::cout << "no models in " << spec::hub_cache().string() << "\n";
    if (!others.empty())
      std::cout << "\n" << table({"CANNOT RUN", "WHY"}, others, output_width()) << std::flush;
  }

  void print(const nlohmann::json& documents, const Row& heads,
             const std::vector<Row>& rows) const {
    if (json())
      print_json(documents);
    else if (!rows.empty())
      std::cout << table(heads, rows, output_width()) << std::flush;
  }

  bool known_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_models(Options& options) {
  return std::make_unique<ModelsVerb>(options);
}

std::unique_ptr<Verb> make_inspect(Options& options) {
  return std::make_unique<InspectVerb>(options);
}

}  // namespace troupe::cli
