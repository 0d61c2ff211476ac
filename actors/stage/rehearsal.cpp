#include "actors/stage/rehearsal.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "transport/tensor/group.h"
#include "transport/wire/codec.h"

namespace troupe::actors {
namespace {

/// A group that exchanges nothing and whose operations have always ended: for a rehearsal. What is
/// received is zero, and yes where it is bytes, which are decisions.
class NullGroup final : public tensor::Group {
 public:
  NullGroup(int rank, int size, std::string name)
      : rank_(rank), size_(size), name_(std::move(name)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  tensor::Work send(const at::Tensor& in, int destination) override;
  tensor::Work receive(const at::Tensor& out, int source) override;
  tensor::Work grouped(const std::vector<tensor::PeerTensor>& sends,
                       const std::vector<tensor::PeerTensor>& receives) override;
  tensor::Work broadcast(const at::Tensor& inout, int root) override;
  tensor::Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override;
  tensor::Work all_to_all(const std::vector<at::Tensor>& outs,
                          const std::vector<at::Tensor>& ins) override;
  tensor::Work all_reduce(const at::Tensor& inout, tensor::ReduceOp op) override;
  void abort(const std::string&) override {}
  tensor::Counters counters() const override { return {}; }

 private:
  int rank_;
  int size_;
  std::string name_;
};

void fill(const at::Tensor& received) {
  received.fill_(received.scalar_type() == at::kByte ? 1 : 0);
}

tensor::Work NullGroup::send(const at::Tensor&, int) {
  return {};
}

tensor::Work NullGroup::receive(const at::Tensor& out, int) {
  fill(out);
  return {};
}

tensor::Work NullGroup::grouped(const std::vector<tensor::PeerTensor>&,
                                const std::vector<tensor::PeerTensor>& receives) {
  for (const auto& receive : receives)
    fill(receive.tensor);
  return {};
}

tensor::Work NullGroup::broadcast(const at::Tensor& inout, int root) {
  if (root != rank_) fill(inout);
  return {};
}

tensor::Work NullGroup::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor&) {
  for (const auto& out : outs)
    fill(out);
  return {};
}

tensor::Work NullGroup::all_to_all(const std::vector<at::Tensor>& outs,
                                   const std::vector<at::Tensor>&) {
  for (const auto& out : outs)
    fill(out);
  return {};
}

tensor::Work NullGroup::all_reduce(const at::Tensor&, tensor::ReduceOp) {
  return {};
}

/// Returns the job's BeginJob changed so that the job starts from noise, at step 0.
wire::BeginJob from_the_start(wire::BeginJob begin) {
  begin.first_step = 0;
  begin.boundary.clear();
  begin.request.init_latents_blob = 0;
  begin.request.init_latents_bytes = 0;
  begin.request.init_image_blob = begin.request.init_image_bytes = 0;
  begin.request.init_image_height = begin.request.init_image_width = 0;
  for (auto& image : begin.request.images)
    image.blob = 0;
  begin.request.last_image.blob = 0;
  for (auto& image : begin.request.control_images)
    image.blob = 0;
  // All ControlNets count in the few steps that are rehearsed.
  begin.request.control_from.clear();
  begin.request.control_until.clear();
  begin.request.prompt_embeds_blob = 0;
  return begin;
}

class Rehearsal {
 public:
  Rehearsal(const wire::BeginJob& begin, const JobTools& tools, const OnRehearsedStep& on_step)
      : on_step_(on_step),
        silent_(silent(begin.epoch, tools.groups)),
        job_(from_the_start(begin), quiet(tools), {}),
        begin_(job_.begin()) {}

  void run() {
    job_.keep_blank_text();
    const auto& request = begin_.request;
    int step = run_until_alike(0);
    // A long warm-up is like itself before its end.
    if (!patches_) step = run_until_alike(std::max(step, request.warmup_steps));
    const auto& steps = begin_.steps;
    const auto rest = steps.begin() + std::min<std::ptrdiff_t>(step, std::ssize(steps));
    const auto refill = std::find(rest, steps.end(), wire::StepKind::refill);
    if (!whole_ && refill != steps.end()) run(static_cast<int>(refill - steps.begin()));
    job_.warm_up_previews();
  }

 private:
  /// Runs steps from `step` on, until one is like a step before; returns the first step that was
  /// not run.
  int run_until_alike(int step) {
    // The second step takes latents from another stage and the sampler's history, and the third a
    // longer one, whatever the network does.
    constexpr int kLeast = 3;
    for (; step < begin_.request.steps; ++step) {
      if (!kinds_.insert(kind_of(step)).second && step >= kLeast) break;
      run(step);
    }
    return step;
  }
  /// Steps of one kind do the same work on the same shapes: latents that come from the step before
  /// as that was computed, the step itself, and what the network does in it.
  using Kind = std::tuple<std::optional<bool>, wire::StepKind, std::string>;
  Kind kind_of(int step) const {
    const auto before = step == 0 ? std::nullopt : std::optional(is_whole(step - 1));
    return {before, begin_.steps.at(step), job_.network().state(step)};
  }
  bool is_whole(int step) const { return job_.context().is_whole(step); }

  static std::unique_ptr<GroupTable> silent(std::uint64_t epoch, const GroupTable& groups) {
    auto table = std::make_unique<GroupTable>();
    for (const auto& [id, group] : groups.of(epoch))
      table->add(epoch, id,
                 std::make_unique<NullGroup>(group->rank(), group->size(), group->name()));
    return table;
  }
  JobTools quiet(const JobTools& tools) const {
    // Groups that exchange nothing may bring any numbers.
    return {tools.stage,
            *silent_,
            tools.progress,
            tools.blobs,
            tools.transfer_deadline,
            /*cuda_graphs=*/false,
            /*clock=*/nullptr,
            /*not_finite=*/[](const std::string&) {}};
  }

  std::vector<StepPlace> places(int step) const {
    std::vector<StepPlace> all;
    if (is_whole(step)) {
      for (int part = 0; part < std::ssize(begin_.batch_parts); ++part)
        all.push_back({step, -1, part});
    } else {
      for (int patch = 0; patch < std::ssize(begin_.micro_steps); ++patch)
        all.push_back({step, patch, 0});
    }
    return all;
  }

  /// Posts the receives of what the stages before would send for this step.
  void post_receives(int step) {
    if (begin_.stage.degree == 1) return;
    const int before = job_.context().previous_stage();
    if (job_.context().first_stage()) {
      // Latents of the step before, as it went through the last stage.
      if (step == 0) return;
      if (is_whole(step - 1)) return job_.post_receive({step, -1, 0}, before);
      for (int patch = 0; patch < std::ssize(begin_.micro_steps); ++patch)
        job_.post_receive({step, patch, 0}, before);
      return;
    }
    for (const auto& place : places(step)) {
      job_.post_receive(place, before);
      for (const auto& edge : begin_.groups.skips_from)
        job_.post_receive(place, edge.stage);
    }
  }

  void run(int step) {
    const bool whole = is_whole(step);
    (whole ? whole_ : patches_) = true;
    if (on_step_) on_step_(whole);
    post_receives(step);
    for (const auto& place : places(step))
      job_.micro_step(place);
  }

  const OnRehearsedStep& on_step_;
  std::set<Kind> kinds_;
  bool whole_ = false;  // a step that takes the whole picture was run
  bool patches_ = false;
  std::unique_ptr<GroupTable> silent_;
  StageJob job_;
  const wire::BeginJob& begin_;
};

}  // namespace

void rehearse(const wire::BeginJob& begin, const JobTools& tools, const OnRehearsedStep& on_step) {
  Rehearsal(begin, tools, on_step).run();
}

std::string rehearsal_key(const wire::BeginJob& begin, const spec::ModelSpec& spec) {
  auto alike = from_the_start(begin);
  alike.job = alike.epoch = 0;
  alike.name.clear();
  auto& request = alike.request;
  request.guidance_scale =
      spec.no_guidance() + (spec.has_branches(request.guidance_scale.value()) ? 1 : 0);
  if (request.guidance_scale_2) request.guidance_scale_2 = 0;
  request.negative_prompt.reset();
  request.negative_prompts.clear();
  for (auto& prompt : request.prompts)
    prompt.clear();
  // Steps behind the first ones go as those did.
  constexpr std::int32_t kFirstSteps = 4;
  request.steps = std::min(request.steps, request.warmup_steps + kFirstSteps);
  if (!request.refill_steps.empty()) request.refill_steps = {0};
  alike.steps.clear();  // they follow from the request
  alike.sampler_steps = alike.skipped_steps = 0;
  request.strength = 0;
  request.mask_image_blob = 0;
  request.mask_image_bytes = request.mask_image_bytes > 0 ? 1 : 0;
  request.mask_image_height = request.mask_image_width = 0;
  for (auto& image : request.images)
    image.blob = 0, image.bytes = 1;
  request.last_image.blob = 0;
  request.last_image.bytes = request.last_image.bytes > 0 ? 1 : 0;
  for (auto& image : request.control_images)
    image = {.bytes = 1};
  request.seed = 0;
  request.picture_seeds.clear();
  for (auto& run : request.seeds)
    run.seed = 0;
  return wire::encode(alike);
}

}  // namespace troupe::actors
