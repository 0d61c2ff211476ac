#include "web/field_words.h"

#include <array>

#include "base/choice.h"

namespace troupe::web {
namespace {

constexpr int kEveryCall = kWebui | kImages | kVideos | kJobs;

/// Field that a call has for a part of the submission, where it has not our name.
struct FieldWord {
  int calls;  // a sum of Calls
  wire::JobField field;
  std::string_view name;        // "" = clients of the call cannot say it
  bool is_more = false;         // it says more than that part, which keeps its name in texts
  std::string_view usual = {};  // what holds where the client says nothing
};

constexpr auto kFieldWords = [] {
  using enum wire::JobField;
  return std::to_array<FieldWord>({
      {kEveryCall, prompts, "prompt"},
      {kEveryCall, on_behalf_of, ""},
      {kJobs, progress_interval, "preview_every"},
      {kJobs, progress_count, "preview_every"},
      {kJobs, progress_content, "preview_every"},
      {kImages, progress_interval, "partial_images"},
      {kImages, progress_count, "partial_images"},
      {kImages, progress_content, "partial_images"},
      {kVideos | kWebui, progress_interval, ""},
      {kVideos | kWebui, progress_count, ""},
      {kVideos | kWebui, progress_content, ""},
      {kImages | kVideos | kWebui, want_latents, ""},
      {kImages | kVideos, images_per_prompt, "n"},
      {kImages | kVideos, height, "size", true},
      {kImages | kVideos, width, "size", true},
      {kEdits, init_image, "image"},
      {kEdits, mask_image, "mask"},
      {kVideos, init_image, "input_reference"},
      {kVideos, num_frames, "seconds", true, "none are given, which is 4: "},
      {kWebui, negative_prompts, "negative_prompt"},
      {kWebui, images_per_prompt, "batch_size"},
      {kWebui, guidance_scale, "cfg_scale"},
      {kWebui, picture_seeds, "seed"},
      {kWebui, sampler, "sampler_name"},
      {kWebui, strength, "denoising_strength"},
      {kWebui, model, "override_settings", true},
      {kWebui, init_latents, ""},
      {kWebui, prompt_embeds, ""},
      {kWebui, priority, ""},
      {kWebui, share, ""},
      {kTxt2Img, init_image, ""},
      {kTxt2Img, mask_image, ""},
      {kImg2Img, init_image, "init_images"},
      {kImg2Img, mask_image, "mask"},
  });
}();

void replace_all(std::string& text, const std::string& word, const std::string& by) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
}

}  // namespace

FieldWords::FieldWords(Call call, const std::set<std::string>& given,
                       const std::map<std::string, std::string>& other_names) {
  for (const auto& line : kFieldWords) {
    if ((line.calls & call) == 0) continue;
    const std::string ours = to_string(line.field), theirs(line.name);
    if (given.contains(ours)) continue;
    Word word{theirs, theirs.empty() ? ours : theirs};
    if (line.is_more)
      word.before += ": " + std::string(given.contains(theirs) ? "" : line.usual) + ours;
    words_[line.field] = word;
  }
  for (const auto& [name, ours] : other_names) {
    const auto field = parse_choice<wire::JobField>(ours);
    if (field && given.contains(name) && !given.contains(of(*field))) words_[*field] = {name, name};
  }
}

FieldWords::Word FieldWords::word_of(wire::JobField field) const {
  const auto found = words_.find(field);
  return found != words_.end() ? found->second : Word{to_string(field), to_string(field)};
}

std::string FieldWords::in_words(std::string text) const {
  for (const auto& [field, word] : words_) {
    if (!word.name.empty()) replace_all(text, "`" + to_string(field) + "`", "`" + word.name + "`");
  }
  const std::string first = text.substr(0, text.find_first_of(" :"));
  if (const auto field = parse_choice<wire::JobField>(first))
    text.replace(0, first.size(), word_of(*field).before);
  return text;
}

ApiError FieldWords::in_words(const ApiError& error) const {
  const auto field = parse_choice<wire::JobField>(error.param);
  return {error, in_words(std::string(error.what())), field ? of(*field) : error.param};
}

}  // namespace troupe::web
