#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/parallel/wait_for_work.h"
#include "actors/stage/finite_check.h"
#include "models/dit/diffusion_transformer.h"
#include "models/lora/lora_weights.h"
#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "transport/tensor/group.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// Place of a micro-step: its step, and a patch, or a part of the batch of a whole picture (patch
/// -1).
struct StepPlace {
  int step = 0;
  int patch = -1;
  int part = 0;
  auto operator<=>(const StepPlace&) const = default;
};

/// A micro-step that a network is asked to compute.
struct NetworkStep {
  StepPlace place;
  wire::RowRange items;  // batch items (branches × pictures) that are computed
  bool refill = false;   // a whole step after the warm-up: what is kept of others is not to be used
  bool last = false;     // of the job
};

/// Values that a job gives its network; all of them outlive the network's part.
struct NetworkJob {
  const wire::BeginJob& begin;
  const models::Sampler& sampler;
  models::PictureSize size;
  std::vector<models::PictureSize> references;  // latents of the pictures to edit
  std::int64_t prompt_tokens = 0;  // that a prompt is padded or cut to, its pictures' among them
  std::int64_t images = 1;         // of this replica
  std::int64_t branches = 1;       // computed at this actor
  WaitForWork wait;
  std::function<std::shared_ptr<tensor::Group>(std::uint32_t id)> group;  // null for id 0
  std::function<void()> tick;          // a sign of life; throws when the job's epoch has ended
  std::function<void()> await_device;  // before the host reads what the device makes
  /// Returns the picture of a ControlNet, which can be had once: float32 [1, 3, H, W], 0 to 1.
  std::function<at::Tensor(std::size_t number)> control_picture;
  LayerWatch& layers;   // told of each layer before it runs
  bool graphs = false;  // what comes again is to be recorded where it can be
};

/// Numbers of calls that a step cache has been asked about, and of calls that it left out. A call
/// is a batch item's patch, or its whole picture, at a step.
struct CacheUse {
  std::int64_t calls = 0;                      // of each batch item so far
  std::vector<std::int64_t> skipped;           // by batch item; empty without a cache
  std::vector<std::uint32_t> skipped_by_step;  // of all batch items together
};

/// Numbers of a job's calls that were recorded and replayed as CUDA graphs (docs/gpu.md).
struct GraphUse {
  std::uint64_t recorded = 0;
  std::uint64_t replayed = 0;
  std::string why_plain;  // why calls were not recorded; empty where all were
};

/// A network at work for one job: it keeps the job's text and values of earlier steps. Latents and
/// samplers belong to the job.
class JobNetwork {
 public:
  virtual ~JobNetwork() = default;

  /// The text of this actor's batch items, once, before the first micro-step. mask [B, L], true:
  /// attend to it.
  virtual void keep_text(const models::Caption& text, const at::Tensor& mask) = 0;
  /// Returns the shape of what earlier stages send for a micro-step: the hidden states of the stage
  /// before, then the states that each stage leaves for this one, the nearest first.
  virtual std::vector<std::int64_t> input_shape(const NetworkStep& step) const = 0;
  /// Returns the bytes of the note that each stage sends to the next one ahead of a micro-step's
  /// hidden states; 0: no note.
  virtual std::int64_t note_size(const NetworkStep&) const { return 0; }
  /// Takes the note of the stage before, uint8 [note_size]; called before `run`.
  virtual void take_note(const NetworkStep&, const at::Tensor&) {}
  /// Returns the note for the next stage; called after `run`.
  virtual at::Tensor note(const NetworkStep&) const { return {}; }
  /// Embeds own rows of the scaled latents [items, C, rows, w], with the channels that stand beside
  /// them, one run below the other, as the first block takes them; first stage only.
  virtual at::Tensor embed(const NetworkStep& step, const at::Tensor& latents) = 0;
  /// Runs this stage's part of the network; works in place if it can.
  virtual at::Tensor run(const NetworkStep& step, at::Tensor hidden) = 0;
  /// Returns float32 predictions of own rows, [items, C, rows, w]; last stage only.
  virtual at::Tensor project(const NetworkStep& step, const at::Tensor& hidden) = 0;

  /// Returns the state that the work of this step depends on beside its place: steps of equal
  /// states that take the same rows do the same on the same shapes.
  virtual std::string state(int) const { return {}; }

  /// Returns true if ranks with patches of their own compute side by side and get each other's
  /// values a step later; false if all rows of a micro-step meet in it.
  virtual bool is_asynchronous() const { return false; }

  /// Returns the bytes of all values kept from step to step, text included.
  virtual std::int64_t bytes() const = 0;
  /// Returns the bytes that were sent for others to use, by kind of layer, if the network has
  /// kinds.
  virtual std::map<std::string, std::uint64_t> sent_by_layer() const { return {}; }
  virtual CacheUse cache_use() const { return {}; }
  virtual GraphUse graph_use() const { return {0, 0, "this kind of network is not recorded"}; }
  /// Returns the tensors by name, for inspection.
  virtual std::vector<std::pair<std::string, at::Tensor>> tensors() const { return {}; }
};

/// The weights of one actor's part of a network, whatever its kind.
class Network {
 public:
  virtual ~Network() = default;
  /// Returns the bytes of the weights.
  virtual std::int64_t bytes() const = 0;
  /// Projects the text encoders' outputs, in the order of the folder's encoders, to the caption
  /// that all actors get. First stage only.
  virtual models::Caption project_caption(const std::vector<models::EncoderOutput>& text) const = 0;
  /// Throws std::invalid_argument if the job asks for something that the network does not have.
  virtual std::unique_ptr<JobNetwork> begin(const NetworkJob& job) const = 0;
};

/// Returns the type in which products of tokens keep their weights.
kernels::WeightType weight_type(WeightChoice choice);

/// Reads the weights that `load` names, with the additions of `loras`; `tick` is called before each
/// tensor, and an exception that it throws ends the reading. Throws std::runtime_error for weights
/// that are missing, misshapen or not finite.
std::unique_ptr<Network> load_network(const spec::ModelSpec& spec, const wire::LoadStage& load,
                                      const models::LoraWeights& loras, at::ScalarType dtype,
                                      at::Device device, const std::function<void()>& tick);

}  // namespace troupe::actors
