#include "actors/stage/job_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "actors/stage/encode_picture.h"
#include "models/dit/diffusion_transformer.h"
#include "models/image/resize.h"
#include "models/spec/fingerprint.h"
#include "models/spec/model_spec.h"
#include "models/spec/prompt_embeds.h"
#include "models/spec/resolution_bins.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {
namespace {

using TensorKind = spec::PromptTensor::Kind;

[[noreturn]] void refuse_tensor(const std::string& name, const std::string& why) {
  throw std::invalid_argument("[actor] " + name + " " + why);
}

std::map<std::string, at::Tensor> read_tensors(const wire::ImageRequest& request,
                                               const std::string& bytes) {
  std::map<std::string, at::Tensor> tensors;
  std::size_t offset = 0;
  for (const auto& [name, shape] : request.prompt_embeds) {
    auto tensor = at::empty(shape, at::kFloat);
    if (tensor.nbytes() > bytes.size() - offset)
      refuse_tensor(name, "ends behind the " + std::to_string(bytes.size()) + " bytes that came");
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + offset, tensor.nbytes());
    offset += tensor.nbytes();
    if (!tensor.isfinite().all().item<bool>()) refuse_tensor(name, "is not finite");
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

/// Returns the number of tokens that each row of a mask [B, L] lets through: [B] int64.
at::Tensor lengths_of(const std::string& name, const at::Tensor& mask) {
  const auto lengths = mask.sum(1).to(at::kLong);
  const auto ones = at::arange(mask.size(1), at::kLong).unsqueeze(0).lt(lengths.unsqueeze(1));
  if (!mask.eq(ones.to(mask.scalar_type())).all().item<bool>() || lengths.eq(0).any().item<bool>())
    refuse_tensor(name, "is not ones, at least one, and then zeros in each of its rows");
  return lengths;
}

/// Puts the tokens that a mask [B, L] lets through before the others, in their order: those of
/// `states` [B, L, D], and the mask's.
void put_first(at::Tensor& mask, at::Tensor& states) {
  const at::Tensor order = at::argsort(mask, /*stable=*/true, /*dim=*/1, /*descending=*/true);
  mask = mask.gather(1, order);
  states = states.gather(1, order.unsqueeze(2).expand_as(states));
}

/// Returns the text encoders' output that a request brings along in `bytes`, for this replica's
/// pictures: a row each, and where there are two branches the negative one's rows first. float32 on
/// the CPU. Throws std::invalid_argument naming a tensor that does not fill its shape or is not
/// finite, and a mask that is anything but ones, then zeros.
std::vector<models::EncoderOutput> read_prompt_embeds(const spec::ModelSpec& model,
                                                      const wire::BeginJob& begin, bool guided,
                                                      const std::string& bytes) {
  const auto tensors = read_tensors(begin.request, bytes);
  const auto prompts = at::arange(begin.first_image, begin.last_image, at::kLong)
                           .floor_divide(begin.request.images_per_prompt);
  std::vector<models::EncoderOutput> outputs;
  for (const auto& part : spec::prompt_tensors(model)) {
    auto rows = tensors.at(part.name).index_select(0, prompts);
    if (guided) {
      const auto negative = tensors.find(std::string(spec::kNegativeTensor) + part.name);
      // If a model's negative text may be missing, it is zeros.
      rows = at::cat({negative == tensors.end() ? at::zeros_like(rows)
                                                : negative->second.index_select(0, prompts),
                      rows});
    }
    outputs.resize(std::max(outputs.size(), part.output + 1));
    auto& output = outputs[part.output];
    switch (part.kind) {
      case TensorKind::states:
        output.states = rows.flatten(2);
        output.tokens = rows.size(1);
        break;
      case TensorKind::mask:
        if (part.in_any_order) put_first(rows, output.states);
        output.lengths = lengths_of(part.name, rows);
        break;
      case TensorKind::pooled:
        output.pooled = rows;
        break;
    }
  }
  for (auto& output : outputs) {
    if (output.states.defined() && !output.lengths.defined())
      output.lengths = at::full({output.states.size(0)}, output.tokens, at::kLong);
  }
  return outputs;
}

bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
}

/// Beginning and end of a long text, whole characters.
std::string shortened(const std::string& text) {
  constexpr std::size_t kHead = 80;
  constexpr std::size_t kTail = 40;
  if (text.size() <= kHead + kTail) return text;
  std::size_t head = kHead;
  while (head > 0 && continues_character(text[head]))
    --head;
  std::size_t tail = text.size() - kTail;
  while (tail < text.size() && continues_character(text[tail]))
    ++tail;
  return text.substr(0, head) + " … " + text.substr(tail);
}

/// Warnings about text that was cut, one per prompt; the first replica warns of a negative prompt
/// for all replicas.
std::vector<wire::Warning> cut_warnings(const wire::BeginJob& begin,
                                        const std::vector<std::string>& cut, bool guidance) {
  const auto& request = begin.request;
  std::vector<wire::Warning> warnings;
  const auto cut_off = [&](const std::string& text) {
    return "has more than " + std::to_string(request.max_sequence_length) + " tokens; cut off: \"" +
           shortened(text) + "\"";
  };
  const int images = begin.last_image - begin.first_image;
  const bool shared = request.negative_prompts.empty();
  if (guidance && shared && begin.first_image == 0 && !cut.front().empty()) {
    std::string what = "negative prompt ";
    warnings.push_back({std::nullopt, what += cut_off(cut.front())});
  }
  for (int i = 0; guidance && !shared && i < images; ++i) {
    const int prompt = (begin.first_image + i) / request.images_per_prompt;
    if (!cut[i].empty()) warnings.push_back({prompt, "has a negative one that " + cut_off(cut[i])});
  }
  for (int i = 0; i < images; ++i) {
    const int image = begin.first_image + i;
    const bool first_of_prompt = i == 0 || image % request.images_per_prompt == 0;
    const auto& text = cut[(guidance ? images : 0) + i];
    if (!first_of_prompt || text.empty()) continue;
    warnings.push_back({image / request.images_per_prompt, cut_off(text)});
  }
  return warnings;
}

}  // namespace

at::Tensor InitImage::read_pixels(control::BlobBytes& picture, const std::string& what) {
  const auto& request = job_.begin.request;
  return read_resized(job_, picture, what, {request.height, request.width});
}

at::Tensor InitImage::encode() {
  if (!needs_image(job_.begin, job_.tools.stage.spec()) || job_.begin.vae.degree == 0) return {};
  // The file and its own pixels are gone before the encoder begins: the plan counts on it.
  const auto pixels = models::to_model_range(read_pixels(picture_, "the picture to begin with"));
  const auto encoded = encode_together(job_, pixels, latents_.image_noise());
  if (!encoded.defined()) return {};
  job_.require_finite(encoded, "encoded picture");
  if (!job_.keeps_unmasked()) return encoded;
  const auto mask = models::latent_mask(read_pixels(mask_, "the mask"), job_.size.latent_height,
                                        job_.size.latent_width);
  return at::cat({encoded, mask.to(encoded.device()).expand({encoded.size(0), -1, -1, -1})}, 1);
}

void InitImage::keep_blank() {
  if (!job_.keeps_unmasked()) return;
  const auto blank = at::zeros({1, job_.channels, job_.size.latent_height, job_.size.latent_width},
                               at::TensorOptions().device(job_.tools.stage.device()));
  latents_.begin_with(blank, blank.narrow(1, 0, 1));
}

void InitImage::begin_latents(const at::Tensor& encoded) {
  if (!needs_image(job_.begin, job_.tools.stage.spec())) return;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(job_.tools.stage.device());
  auto clean = encoded.defined()
                   ? encoded.to(options).contiguous()
                   : at::empty({job_.begin.request.seeds.size() > 1 ? job_.images() : 1,
                                job_.channels + job_.keeps_unmasked(), job_.size.latent_height,
                                job_.size.latent_width},
                               options);
  if (const auto replica = job_.group(job_.begin.groups.caption))
    job_.waits.wait(replica->broadcast(clean, job_.begin.image_root));
  latents_.begin_with(clean.narrow(1, 0, job_.channels),
                      job_.keeps_unmasked() ? clean.narrow(1, job_.channels, 1) : at::Tensor());
}

SeenPictures EditedPictures::seen() const {
  SeenPictures seen;
  const auto& model = job_.tools.stage.spec();
  if (files_.empty() || !sees_images(model, job_.begin)) return seen;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const auto& image = job_.begin.request.images.at(i);
    const std::string_view bytes(reinterpret_cast<const char*>(files_[i]->data()),
                                 files_[i]->size());
    auto file = files_[i];
    seen.rgb.push_back(read_resized(job_, file, "a picture to edit",
                                    spec::edited_size(model, {image.height, image.width}).seen));
    seen.fingerprint += std::to_string(spec::bytes_fingerprint(bytes)) + '\n';
  }
  return seen;
}

void EditedPictures::encode() {
  if (files_.empty()) return;
  if (job_.begin.vae.degree == 0 || job_.begin.vae.rank > 0) return files_.clear();
  const auto& model = job_.tools.stage.spec();
  const auto encode_one =
      job_.tools.stage.edited_encoder(job_.begin.request.vae_tiling, [this] { job_.tick(); });
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const auto& image = job_.begin.request.images.at(i);
    const auto size = spec::edited_size(model, {image.height, image.width});
    // The file and its own pixels are gone before the encoder begins: the plan counts on it.
    const auto& [height, width] = size.cut;
    const auto pixels =
        models::to_model_range(read_resized(job_, files_[i], "a picture to edit", size.resized)
                                   .narrow(0, (size.resized.height - height) / 2, height)
                                   .narrow(1, (size.resized.width - width) / 2, width)
                                   .contiguous());
    encoded_.push_back(encode_one(pixels));
    job_.require_finite(encoded_.back(), "encoded picture");
  }
  files_.clear();
}

std::vector<at::Tensor> EditedPictures::blank() const {
  std::vector<at::Tensor> latents;
  for (const auto& size : job_.references)
    latents.push_back(at::zeros({1, job_.channels, size.latent_height, size.latent_width},
                                at::TensorOptions().device(job_.tools.stage.device())));
  return latents;
}

std::vector<at::Tensor> EditedPictures::share() {
  auto latents = encoded_.empty() ? blank() : std::exchange(encoded_, {});
  if (const auto replica = job_.group(job_.begin.groups.caption))
    for (const auto& own : latents)
      job_.waits.wait(replica->broadcast(own, job_.begin.image_root));
  return latents;
}

EncodedText JobText::empty_text() const {
  const auto& facts = job_.tools.stage.spec().transformer;
  const auto batch = job_.images() * (job_.guided() ? 2 : 1);
  const auto tokens = facts.caption_tokens(job_.prompt_tokens);
  const auto options =
      at::TensorOptions().dtype(job_.tools.stage.dtype()).device(job_.tools.stage.device());
  EncodedText text;
  text.caption.states = at::empty({batch, tokens, facts.caption_width}, options);
  if (facts.pooled_width > 0) text.caption.pooled = at::empty({batch, facts.pooled_width}, options);
  text.lengths = at::empty({batch}, at::kLong);
  return text;
}

void JobText::keep_blank() {
  auto text = empty_text();
  text.caption.states.zero_();
  if (text.caption.pooled.defined()) text.caption.pooled.zero_();
  text.lengths.fill_(text.caption.states.size(1));
  text.caption.seen = given_frames_.keep_blank();
  keep(text, edited_.blank());
  init_image_.keep_blank();
  beside_.keep_blank();
}

TaskResult JobText::encode() {
  const auto& begin = job_.begin;
  const bool given = !begin.request.prompt_embeds.empty();
  const bool encodes = !given || encodes_negative_alone();
  if (encodes) seen_ = edited_.seen();
  edited_.encode();
  given_frames_.encode();
  const auto picture = init_image_.encode();  // while others encode the text, most often
  beside_.encode();
  const bool projects = begin.caption_rank == begin.caption_root;
  TaskResult result;
  auto text = empty_text();
  std::optional<EncodedText> encoded;
  if (encodes) {
    const auto outputs = encode_prompts(result);
    if (projects) encoded = project(outputs);
  }
  if (projects) text = given ? project_given(std::move(encoded)) : std::move(*encoded);
  seen_ = {};
  share(text);
  text.caption.seen = given_frames_.share();
  keep(text, edited_.share());
  init_image_.begin_latents(picture);
  beside_.share();
  return result;
}

std::vector<models::EncoderOutput> JobText::encode_prompts(TaskResult& result) {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  auto& stage = job_.tools.stage;
  const auto& encoders = stage.spec().text_encoders;
  const auto before = stage.prompt_use();
  std::vector<models::EncoderOutput> outputs(encoders.size());
  std::vector<std::string> cut;
  std::vector<models::TextualInversion> learned;
  if (std::ranges::find(begin.encoder_ranks, begin.caption_rank) != begin.encoder_ranks.end())
    learned = stage.read_embeddings(request.embeddings);
  for (std::size_t i = 0; i < encoders.size(); ++i) {
    if (begin.encoder_ranks.at(i) != begin.caption_rank) continue;
    std::vector<std::string> own_cut;
    outputs[i] = stage.encode_text(
        i, rows_.unique, job_.prompt_tokens, request.clean_caption, own_cut,
        [this] { job_.tick(); }, learned, seen_);
    // What the longest encoder could not take is what was cut.
    const bool last = std::all_of(encoders.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                  encoders.end(), [](const auto& one) { return one.absent; });
    if (last && !encoders[i].absent) cut = std::move(own_cut);
  }
  use_.encoded += stage.prompt_use().encoded - before.encoded;
  use_.from_cache += stage.prompt_use().from_cache - before.from_cache;
  if (!cut.empty()) {
    std::vector<std::string> of_rows;
    for (const auto row : rows_.of_row)
      of_rows.push_back(cut[row]);
    of_rows.resize(static_cast<std::size_t>(job_.images()) * (job_.guided() ? 2 : 1));
    result.warnings = cut_warnings(begin, of_rows, job_.guided());
  }
  gather(outputs);
  return outputs;
}

void JobText::gather(std::vector<models::EncoderOutput>& outputs) {
  const auto& begin = job_.begin;
  const auto replica = job_.group(begin.groups.caption);
  if (!replica) return;
  const auto& stage = job_.tools.stage;
  const bool projects = begin.caption_rank == begin.caption_root;
  std::vector<tensor::Work> works;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const auto from = begin.encoder_ranks.at(i);
    if (from == begin.caption_root || stage.spec().text_encoders[i].absent) continue;
    auto& output = outputs[i];
    if (projects) {
      output = stage.empty_output(i, std::ssize(rows_.unique), job_.prompt_tokens);
    } else if (from != begin.caption_rank) {
      continue;
    }
    output.lengths = output.lengths.to(stage.device());
    for (const auto& part : {output.states, output.pooled, output.lengths}) {
      if (!part.defined()) continue;
      works.push_back(projects ? replica->receive(part, from)
                               : replica->send(part, begin.caption_root));
    }
  }
  if (!projects) return;  // nothing waits for a send
  for (const auto& work : works)
    job_.waits.wait(work);
  if (!works.empty()) job_.waits.await_device();
  for (auto& output : outputs)
    if (output.lengths.defined()) output.lengths = output.lengths.to(at::kCPU);
}

EncodedText JobText::project(std::vector<models::EncoderOutput> outputs) const {
  const auto& request = job_.begin.request;
  const auto& stage = job_.tools.stage;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    outputs[i] = stage.without_padding(i, std::move(outputs[i]));
  auto text = stage.project_text(outputs, job_.prompt_tokens);
  const auto rows = at::tensor(rows_.of_row, at::kLong);
  for (auto* states : {&text.caption.states, &text.caption.pooled}) {
    if (!states->defined()) continue;
    *states = states->index_select(0, rows.to(states->device())).contiguous();
  }
  text.lengths = text.lengths.index_select(0, rows);
  // An empty one that is given is encoded as such, as in diffusers.
  if (request.prompt_embeds.empty() && job_.guided() && stage.spec().zero_negative &&
      !request.negative_prompt && request.negative_prompts.empty()) {
    for (auto* states : {&text.caption.states, &text.caption.pooled})
      if (states->defined()) states->slice(0, 0, job_.images()).zero_();
  }
  job_.require_finite(text.caption.states, "encoded text");
  return text;
}

bool JobText::encodes_negative_alone() const {
  return wire::encodes_negative_alone(job_.begin.request, job_.guided(),
                                      job_.tools.stage.spec().zero_negative);
}

EncodedText JobText::project_given(std::optional<EncodedText> negative) const {
  if (!given_) throw std::logic_error("[actor] the prompt embeds are not here");
  const auto& stage = job_.tools.stage;
  auto text = stage.project_text(
      read_prompt_embeds(stage.spec(), job_.begin, job_.guided() && !negative, *given_),
      job_.prompt_tokens);
  if (negative) {
    auto& states = text.caption.states;
    auto& pooled = text.caption.pooled;
    states = at::cat({negative->caption.states, states});
    if (pooled.defined()) pooled = at::cat({negative->caption.pooled, pooled});
    text.lengths = at::cat({negative->lengths, text.lengths});
  }
  job_.require_finite(text.caption.states, "projected prompt embeds");
  return text;
}

void JobText::share(EncodedText& text) {
  const auto replica = job_.group(job_.begin.groups.caption);
  if (!replica) return;
  auto lengths = text.lengths.to(job_.tools.stage.device());
  std::vector<tensor::Work> works;
  for (const auto& part : {text.caption.states, text.caption.pooled, lengths}) {
    if (part.defined()) works.push_back(replica->broadcast(part, job_.begin.caption_root));
  }
  for (const auto& work : works)
    job_.waits.wait(work);
  job_.waits.await_device();
  text.lengths = lengths.to(at::kCPU);
}

void JobText::keep(const EncodedText& text, std::vector<at::Tensor> references) {
  auto own = text.caption;
  own.references = std::move(references);
  auto lengths = text.lengths;
  const auto images = job_.images();
  if (job_.begin.cfg.degree == 2) {
    const auto first = job_.begin.cfg.rank * images;
    own.states = own.states.slice(0, first, first + images);
    if (own.pooled.defined()) own.pooled = own.pooled.slice(0, first, first + images);
    lengths = lengths.slice(0, first, first + images);
  }
  // The sequence of a joint model has as many text tokens in every job of this request.
  const auto& facts = job_.tools.stage.spec().transformer;
  const auto tokens = facts.joint ? own.states.size(1) : lengths.max().item<std::int64_t>();
  own.states = own.states.slice(1, 0, tokens).contiguous();
  const auto mask =
      at::arange(tokens, at::kLong).unsqueeze(0).lt(lengths.unsqueeze(1)).to(own.states.device());
  network_.keep_text(own, mask);
}

}  // namespace troupe::actors
