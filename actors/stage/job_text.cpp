#include "actors/stage/job_text.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "actors/stage/given_text.h"

namespace troupe::actors {
namespace {

/// Prompts of the branches that guidance needs, negative first as diffusers stacks them, a row an
/// image.
std::vector<std::string> branch_prompts(const wire::BeginJob& begin, bool guided) {
  std::vector<std::string> prompts;
  const auto& request = begin.request;
  for (int image = begin.first_image; guided && image < begin.last_image; ++image) {
    prompts.push_back(request.negative_prompts.empty() ? request.negative_prompt
                                                       : request.negative_prompts[image]);
  }
  for (int image = begin.first_image; image < begin.last_image; ++image) {
    prompts.push_back(request.prompts[image / request.images_per_prompt]);
  }
  return prompts;
}

/// Encodes each different prompt once and lays the rows out as asked.
EncodedText encode_rows(const Stage& stage, const std::vector<std::string>& prompts,
                        const wire::ImageRequest& request, const Stage::Tick& tick) {
  std::vector<std::string> unique;
  std::vector<std::int64_t> row_of;
  for (const auto& prompt : prompts) {
    const auto found = std::find(unique.begin(), unique.end(), prompt);
    row_of.push_back(found - unique.begin());
    if (found == unique.end()) unique.push_back(prompt);
  }
  auto text = stage.encode_text(unique, request.max_sequence_length, request.clean_caption, tick);
  const auto rows = at::tensor(row_of, at::kLong);
  for (auto* states : {&text.caption.states, &text.caption.pooled}) {
    if (!states->defined()) continue;
    *states = states->index_select(0, rows.to(states->device())).contiguous();
  }
  text.lengths = text.lengths.index_select(0, rows);
  std::vector<std::string> cut;
  for (const auto row : row_of)
    cut.push_back(text.cut[row]);
  text.cut = std::move(cut);
  return text;
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

/// What was cut, said once for each prompt; a negative one of all by the first replica.
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

EncodedText JobText::empty_text() const {
  const auto& facts = job_.tools.stage.spec().transformer;
  const auto batch = job_.images() * (job_.guided() ? 2 : 1);
  const auto tokens = facts.caption_tokens(job_.begin.request.max_sequence_length);
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
  keep(text);
}

TaskResult JobText::encode() {
  const auto& begin = job_.begin;
  const auto picture = init_image_.encode();  // while another encodes the text, most often
  const bool encodes = begin.caption_rank == begin.caption_root;
  auto text = encodes ? encode_prompts() : empty_text();
  TaskResult result;
  if (encodes) result.warnings = cut_warnings(begin, text.cut, job_.guided());
  share(text);
  keep(text);
  init_image_.begin_latents(picture);
  return result;
}

EncodedText JobText::encode_prompts() const {
  const auto& request = job_.begin.request;
  if (!request.prompt_embeds.empty()) return project_given();
  const auto prompts = branch_prompts(job_.begin, job_.guided());
  auto text = encode_rows(job_.tools.stage, prompts, request, [this] { job_.tick(); });
  // Where negative prompts are given one by one, an empty one is encoded as such, as in diffusers.
  if (job_.guided() && job_.tools.stage.spec().zero_negative && request.negative_prompt.empty() &&
      request.negative_prompts.empty()) {
    for (auto* states : {&text.caption.states, &text.caption.pooled})
      if (states->defined()) states->slice(0, 0, job_.images()).zero_();
  }
  job_.require_finite(text.caption.states, "encoded text");
  return text;
}

EncodedText JobText::project_given() const {
  if (!given_) throw std::logic_error("[actor] the prompt embeds are not here");
  const auto& stage = job_.tools.stage;
  auto text = stage.project_text(given_text(stage.spec(), job_.begin, job_.guided(), *given_),
                                 job_.begin.request.max_sequence_length);
  text.cut.resize(text.caption.states.size(0));
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

void JobText::keep(const EncodedText& text) {
  auto own = text.caption;
  auto lengths = text.lengths;
  const auto images = job_.images();
  if (job_.begin.cfg.degree == 2) {
    const auto first = job_.begin.cfg.rank * images;
    own.states = own.states.slice(0, first, first + images);
    if (own.pooled.defined()) own.pooled = own.pooled.slice(0, first, first + images);
    lengths = lengths.slice(0, first, first + images);
  }
  const auto longest = lengths.max().item<std::int64_t>();
  own.states = own.states.slice(1, 0, longest).contiguous();
  const auto mask =
      at::arange(longest, at::kLong).unsqueeze(0).lt(lengths.unsqueeze(1)).to(own.states.device());
  network_.keep_text(own, mask);
}

}  // namespace troupe::actors
