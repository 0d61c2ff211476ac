#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/pipelines.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/user_spec.h"

// What a model plugin, a shared library with models or samplers of one's own, tells of them to
// whoever plans: this half is loaded wherever model folders are read and sees no torch. Its other
// half, which computes, is models/plugin/network_plugin.h's.

namespace troupe::spec {

/// A kind of transformer.
struct UserFamily {
  /// Values of `_class_name` that diffusers, or whoever writes the family's folders, uses.
  std::vector<std::string> classes;
  /// Pipeline classes that model_index.json of such folders may name, each with its text encoders.
  std::vector<Pipeline> pipelines;
  /// Reads a transformer's config. Refuses settings that are not supported by key and value, as
  /// ConfigReader does.
  std::function<std::shared_ptr<const UserTransformer>(const ConfigReader&)> read;
};

/// A sampler.
struct UserSampler {
  std::string name;        ///< name for `--sampler`
  std::string class_name;  ///< class in scheduler_config.json
  bool flow = false;       ///< true for models that predict a flow, not noise
  /// Refuses settings of a scheduler_config.json, whatever class wrote it, that the sampler does
  /// not support; may be empty.
  std::function<void(const ConfigReader&)> check = {};
};

/// Families and samplers that plugins have brought into this process. Thread-safe; nothing is ever
/// removed.
class UserModels {
 public:
  /// Null if no plugin has brought the class or sampler.
  const UserFamily* family_of(const std::string& class_name) const;
  const UserSampler* sampler_of(const std::string& name_or_class) const;
  std::vector<std::string> classes() const;
  std::vector<const Pipeline*> pipelines() const;
  std::vector<std::string> sampler_names() const;
  /// Files that were opened, in order.
  std::vector<std::filesystem::path> files() const;
  /// The file that has brought a name or a class; "" = none has.
  std::string brought_by(const std::string& name) const;

 private:
  friend class ModelRegistry;
  friend void open_model_plugin(const std::filesystem::path& file);

  mutable std::mutex mutex_;
  std::list<UserFamily> families_;
  std::list<UserSampler> samplers_;
  std::map<std::string, std::string> brought_by_;  // names and classes → file
  std::vector<std::filesystem::path> files_;
};
UserModels& user_models();

/// Makers that the computing halves of plugins have brought into this process, by the names that
/// the other halves know. Thread-safe; none ever leaves it.
template <class Make>
class UserMakers {
 public:
  /// `what` they make, for errors.
  explicit UserMakers(std::string what) : what_(std::move(what)) {}

  void add(const std::string& name, Make make) {
    const std::lock_guard lock(mutex_);
    makers_[name] = std::move(make);
  }
  /// Throws std::runtime_error where no plugin brought it.
  const Make& find(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    const auto found = makers_.find(name);
    if (found != makers_.end()) return found->second;
    throw std::runtime_error("[model plugin] the " + what_ + " \"" + name +
                             "\" is known, but no network half of a plugin has brought it");
  }

 private:
  const std::string what_;
  mutable std::mutex mutex_;
  std::map<std::string, Make> makers_;
};

/// Registry that a plugin's entry point adds families and samplers to. All names must be new; else
/// std::runtime_error names the file that has them.
class ModelRegistry {
 public:
  void add(UserFamily family);
  void add(UserSampler sampler);

 private:
  friend void open_model_plugin(const std::filesystem::path& file);
  explicit ModelRegistry(std::string file) : file_(std::move(file)) {}
  void take(const std::string& what, const std::string& name, bool own);

  std::string file_;
  std::map<std::string, std::string> names_;
  std::list<UserFamily> families_;
  std::list<UserSampler> samplers_;
};

namespace plugin {

/// Raised with every change of what these headers, and those that they include, mean.
inline constexpr std::uint32_t kModelAbi = 2;

#define TROUPE_MODEL_TEXT2(x) #x
#define TROUPE_MODEL_TEXT(x) TROUPE_MODEL_TEXT2(x)
#if defined(_GLIBCXX_USE_CXX11_ABI)
#define TROUPE_MODEL_BUILD                                                                \
  "libstdc++ cxx11=" TROUPE_MODEL_TEXT(_GLIBCXX_USE_CXX11_ABI) " abi=" TROUPE_MODEL_TEXT( \
      __GXX_ABI_VERSION)
#else
#define TROUPE_MODEL_BUILD "abi=" TROUPE_MODEL_TEXT(__GXX_ABI_VERSION)
#endif

/// Hash of types' sizes: two builds that disagree about one of them do not understand each other.
constexpr std::uint64_t layout_of(std::initializer_list<std::size_t> sizes) {
  std::uint64_t hash = 14695981039346656037u;
  for (const auto size : sizes)
    hash = (hash ^ size) * 1099511628211u;
  return hash;
}
#define TROUPE_MODEL_LAYOUT                                                      \
  troupe::spec::plugin::layout_of(                                               \
      {sizeof(troupe::spec::TransformerFacts), sizeof(troupe::spec::BlockFacts), \
       sizeof(troupe::spec::PlannedTensor), sizeof(troupe::spec::PromptTensor),  \
       sizeof(troupe::spec::Pipeline), sizeof(troupe::spec::ConfigReader),       \
       sizeof(troupe::spec::ModelSpec), sizeof(troupe::spec::SchedulerConfig),   \
       sizeof(troupe::spec::UserFamily), sizeof(troupe::spec::UserSampler)})

/// Description that an entry point returns. The first three fields stay as they are in every
/// version.
template <class Registry>
struct Description {
  std::uint32_t abi;
  std::uint32_t bytes;
  const char* build;
  std::uint64_t layout;
  void (*add)(Registry& registry);
};

/// Throws std::runtime_error, one line that names the file.
[[noreturn]] void refuse(const std::string& file, const std::string& why);
/// Opens a library and its entry point, and compares what it was built with; refuses what does not
/// fit.
const void* open_library(const std::filesystem::path& file, const char* entry, const char* macro,
                         const char* build, std::uint64_t layout, std::uint32_t bytes);

}  // namespace plugin

/// TROUPE_MODEL_PLUGIN(add): in one source file of the library that `--model-plugin` is given, with
/// a function `void add(troupe::spec::ModelRegistry&)`.
#define TROUPE_MODEL_PLUGIN(add_to)                                                           \
  extern "C" [[gnu::visibility("default")]] const void* troupe_model_plugin() {               \
    using Registry = troupe::spec::ModelRegistry;                                             \
    static const troupe::spec::plugin::Description<Registry> description{                     \
        troupe::spec::plugin::kModelAbi, sizeof(troupe::spec::plugin::Description<Registry>), \
        TROUPE_MODEL_BUILD, TROUPE_MODEL_LAYOUT, add_to};                                     \
    return &description;                                                                      \
  }

/// libNAME_network.so beside libNAME.so: the half of a plugin that computes.
std::filesystem::path network_half_of(const std::filesystem::path& file);

/// Opens a plugin's library and takes what it brings into `user_models()`; one that is open already
/// is left alone. Throws std::runtime_error, one line that names the file and why: one of its name
/// is open from another folder, it or its other half is missing, it lacks a symbol or its entry
/// point, was built for another Troupe, or brings a name that is taken.
void open_model_plugin(const std::filesystem::path& file);

}  // namespace troupe::spec
