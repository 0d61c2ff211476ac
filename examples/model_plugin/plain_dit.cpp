// libplain_dit.so: what plans must know of the model and the sampler. It sees no torch.
#include "plain_dit.h"

using namespace troupe::spec;

namespace {

constexpr std::int64_t kTimeFeatures = 256;

}  // namespace

std::shared_ptr<const PlainDiTSpec> PlainDiTSpec::read(const ConfigReader& config) {
  auto spec = std::make_shared<PlainDiTSpec>();
  spec->heads = config.integer("num_attention_heads", 1, 256);
  spec->head_dim = config.integer("attention_head_dim", 4, 1024);
  spec->layers = config.integer("num_layers", 1, 1024);
  spec->channels = config.integer_or("in_channels", 4, 1, 1024);
  spec->patch = config.integer_or("patch_size", 2, 1, 64);
  spec->side = config.integer("sample_size", 1, 1 << 16);
  spec->text_width = config.integer("text_width", 1, 1 << 16);
  config.finish();  // refuses keys that were not read
  if (spec->width() % 4 != 0)
    config.refuse("attention_head_dim", "gives a width that is no multiple of 4");
  return spec;
}

TransformerFacts PlainDiTSpec::facts() const {
  const auto square = static_cast<double>(width()) * static_cast<double>(width());
  TransformerFacts facts;
  facts.num_layers = layers;
  facts.num_attention_heads = heads;
  facts.attention_head_dim = head_dim;
  facts.in_channels = facts.out_channels = channels;
  facts.patch_size = patch;
  facts.sample_size = side;
  facts.caption_width = width();
  facts.pads_text = false;
  // q, k, v and out; a feed-forward that is four-fold wide. The sums of both halves over tp.
  facts.blocks.assign(static_cast<std::size_t>(layers),
                      {.weights = (4 + 8) * square, .picture_sums = 2});
  return facts;
}

std::vector<PlannedTensor> PlainDiTSpec::tensors() const {
  TensorTable table;
  table.at(Held::first);
  table.linear("embed", channels * patch * patch, width());
  table.linear("text", text_width, width());
  table.at(Held::everywhere);
  table.linear("time.linear_1", kTimeFeatures, width());
  table.linear("time.linear_2", width(), width());
  for (std::int64_t block = 0; block < layers; ++block) {
    table.at(Held::block, block);
    const auto name = plain_block(block);
    table.linear(name + "modulation", width(), 6 * width());
    for (const char* product : {"to_q", "to_k", "to_v"})
      table.split_outputs(name + product, width(), width(), heads);
    table.split_inputs(name + "to_out", width(), width(), heads);
    table.split_outputs(name + "widen", width(), 4 * width(), 4 * width());
    table.split_inputs(name + "narrow", 4 * width(), width(), 4 * width());
  }
  table.at(Held::last);
  table.linear("norm_out.linear", width(), 2 * width());
  table.linear("proj_out", width(), patch * patch * channels);
  return table.take();
}

void PlainDiTSpec::check_fit(const FitCheck& fit) const {
  fit.require("text_width", text_width, "text_encoder d_model", fit.t5(0).d_model);
}

namespace {

void add_to(ModelRegistry& registry) {
  registry.add(
      UserFamily{.classes = {"PlainDiT"},
                 .pipelines = {{.name = "PlainDiTPipeline",
                                .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
                                .text_tokens = 120}},
                 .read = PlainDiTSpec::read});
  registry.add(UserSampler{.name = "plain-euler", .class_name = "PlainEulerScheduler"});
}

}  // namespace

TROUPE_MODEL_PLUGIN(add_to)
