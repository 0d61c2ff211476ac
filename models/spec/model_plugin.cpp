#include "models/spec/model_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/error_text.h"
#include "models/spec/transformer_spec.h"

namespace troupe::spec {
namespace {

bool is_own_class(const std::string& name) {
  bool own = false;
  each_family([&]<class Family>(std::type_identity<Family>) {
    own = own || std::ranges::find(Family::kClasses, name) != std::end(Family::kClasses);
  });
  return own;
}

}  // namespace

UserModels& user_models() {
  static UserModels models;
  return models;
}

const UserFamily* UserModels::family_of(const std::string& class_name) const {
  const std::lock_guard lock(mutex_);
  for (const auto& family : families_)
    if (std::ranges::find(family.classes, class_name) != family.classes.end()) return &family;
  return nullptr;
}

const UserSampler* UserModels::sampler_of(const std::string& name_or_class) const {
  const std::lock_guard lock(mutex_);
  for (const auto& sampler : samplers_)
    if (sampler.name == name_or_class || sampler.class_name == name_or_class) return &sampler;
  return nullptr;
}

std::vector<std::string> UserModels::classes() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& family : families_)
    names.insert(names.end(), family.classes.begin(), family.classes.end());
  return names;
}

std::vector<const Pipeline*> UserModels::pipelines() const {
  const std::lock_guard lock(mutex_);
  std::vector<const Pipeline*> all;
  for (const auto& family : families_)
    for (const auto& pipeline : family.pipelines)
      all.push_back(&pipeline);
  return all;
}

std::vector<std::string> UserModels::sampler_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& sampler : samplers_)
    names.push_back(sampler.name);
  return names;
}

std::string UserModels::brought_by(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = brought_by_.find(name);
  return found == brought_by_.end() ? "" : found->second;
}

std::vector<std::filesystem::path> UserModels::files() const {
  const std::lock_guard lock(mutex_);
  return files_;
}

void ModelRegistry::take(const std::string& what, const std::string& name, bool own) {
  const auto say = [&](const std::string& whose) {
    plugin::refuse(file_, "brings the " + what + " \"" + name + "\", which " + whose);
  };
  if (name.empty()) plugin::refuse(file_, "brings a " + what + " without a name");
  if (own) say("Troupe has itself");
  const auto& brought = user_models().brought_by_;
  if (const auto found = brought.find(name); found != brought.end())
    say(found->second + " has brought already");
  if (!names_.emplace(name, file_).second) say("it has brought already");
}

void ModelRegistry::add(UserFamily family) {
  if (!family.read || family.classes.empty())
    plugin::refuse(file_, "brings a family without classes or without a way to read it");
  for (const auto& name : family.classes)
    take("transformer class", name, is_own_class(name));
  for (auto& pipeline : family.pipelines) {
    take("pipeline class", pipeline.name, is_own_pipeline(pipeline.name));
    pipeline.transformers = family.classes;
  }
  families_.push_back(std::move(family));
}

void ModelRegistry::add(UserSampler sampler) {
  take("sampler", sampler.name, is_own_sampler(sampler.name));
  take("sampler class", sampler.class_name, is_own_sampler(sampler.class_name));
  samplers_.push_back(std::move(sampler));
}

namespace plugin {

void refuse(const std::string& file, const std::string& why) {
  throw std::runtime_error("[model plugin] " + file + ": " + why);
}

const void* open_library(const std::filesystem::path& path, const char* entry, const char* macro,
                         const char* build, std::uint64_t layout, std::uint32_t bytes) {
  const auto file = path.string();
  if (!std::filesystem::is_regular_file(path)) refuse(file, "there is no such file");
  void* library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(file, "cannot be loaded: " + first_line(dlerror()));
  using Entry = const void* (*)();
  const auto give = reinterpret_cast<Entry>(dlsym(library, entry));
  if (!give) {
    refuse(file, std::string("has no entry point ") + entry + ": is " + macro +
                     "(...) in one of its files?");
  }
  const void* given = give();
  if (!given) refuse(file, "its entry point gives nothing");
  Description<ModelRegistry> head{};
  std::memcpy(&head, given, offsetof(Description<ModelRegistry>, layout));
  if (head.abi != kModelAbi || head.bytes != bytes) {
    refuse(file, "was built for version " + std::to_string(head.abi) +
                     " of what models are told in, this troupe has version " +
                     std::to_string(kModelAbi) + ": build it with this troupe's headers");
  }
  if (std::string(head.build) != build) {
    refuse(file, "was built with " + std::string(head.build) + ", this troupe with " + build);
  }
  std::memcpy(&head, given, sizeof(head));
  if (head.layout != layout) {
    refuse(file,
           "was built with the headers of another troupe, whose types have other sizes: "
           "build it with this troupe's");
  }
  return given;
}

}  // namespace plugin

std::filesystem::path network_half_of(const std::filesystem::path& file) {
  return file.parent_path() / (file.stem().string() + "_network" + file.extension().string());
}

void open_model_plugin(const std::filesystem::path& path) {
  auto& models = user_models();
  std::error_code error;
  const auto file = std::filesystem::weakly_canonical(path, error);
  for (const auto& open : models.files()) {
    if (open == file) return;
    if (open.filename() == file.filename())
      plugin::refuse(path.string(), "has the name of " + open.string() +
                                        ", which is open: the processes of a cluster compare "
                                        "plugins by the files' names, so rename one of them");
  }
  using Told = plugin::Description<ModelRegistry>;
  const auto* told = static_cast<const Told*>(
      plugin::open_library(path, "troupe_model_plugin", "TROUPE_MODEL_PLUGIN", TROUPE_MODEL_BUILD,
                           TROUPE_MODEL_LAYOUT, sizeof(Told)));
  const auto half = network_half_of(path);
  if (!std::filesystem::is_regular_file(half))
    plugin::refuse(path.string(), "its other half, " + half.string() + ", is missing");
  ModelRegistry registry(path.string());
  told->add(registry);
  const std::lock_guard lock(models.mutex_);
  models.families_.splice(models.families_.end(), registry.families_);
  models.samplers_.splice(models.samplers_.end(), registry.samplers_);
  models.brought_by_.merge(registry.names_);
  models.files_.push_back(file);
}

}  // namespace troupe::spec
