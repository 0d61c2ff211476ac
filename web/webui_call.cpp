#include "web/webui_call.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "models/image/limits.h"
#include "models/image/load_picture.h"
#include "models/image/picture_file.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"
#include "web/api_error.h"
#include "web/calls.h"

namespace troupe::web {
namespace {

constexpr double kBracket = 1.1;  // what a pair of round brackets multiplies a weight by

/// A piece of a prompt: words, or a bracket.
struct Piece {
  enum class Kind : std::uint8_t { words, round, end_round, square, end_square };
  Kind kind = Kind::words;
  std::string text = {};   // as it stands in the prompt; of words what they are
  std::size_t length = 0;  // in the prompt
  double weight = kBracket;
  bool closes = false;  // a bracket that has a partner
};

std::string beginning(const std::string& text) {
  constexpr std::size_t kMost = 40;
  return json_text(text.size() > kMost ? text.substr(0, kMost) + "…" : text);
}

ApiError refused(const std::string& field, const std::string& what, const std::string& does,
                 const std::string& remedy) {
  return bad_field(field, "has " + what + ", which in the web UI " + does +
                              ": that is not done here; " + remedy);
}

/// ":1.4)", where a ":" stands at `at`.
std::optional<Piece> weight_at(const std::string& text, std::size_t at) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace, at + 1);
  if (first == text.npos) return std::nullopt;
  const std::size_t end = text.find_first_not_of("+-.0123456789", first);
  const std::size_t close = end == text.npos ? end : text.find_first_not_of(kSpace, end);
  if (end == first || close == text.npos || text[close] != ')') return std::nullopt;
  const std::string number = text.substr(first, end - first);
  const auto weight = parse_number<double>(number.substr(number.starts_with('+')));
  return Piece{.kind = Piece::Kind::end_round,
               .text = text.substr(at, close + 1 - at),
               .length = close + 1 - at,
               .weight = weight.value_or(std::nan(""))};
}

Piece piece_at(const std::string& text, std::size_t at) {
  constexpr std::string_view kSpecial = "\\()[]:";
  using Kind = Piece::Kind;
  switch (text[at]) {
    case '\\': {
      // Before anything but these a backslash goes away.
      const bool escapes =
          at + 1 < text.size() && std::string_view("\\()[]").find(text[at + 1]) != text.npos;
      return {.text = text.substr(at + 1, escapes ? 1 : 0), .length = escapes ? 2u : 1u};
    }
    case '(':
      return {.kind = Kind::round, .text = "(", .length = 1};
    case ')':
      return {.kind = Kind::end_round, .text = ")", .length = 1};
    case '[':
      return {.kind = Kind::square, .text = "[", .length = 1};
    case ']':
      return {.kind = Kind::end_square, .text = "]", .length = 1, .weight = 1 / kBracket};
    case ':':
      if (auto weight = weight_at(text, at)) return std::move(*weight);
      return {.text = ":", .length = 1};
    default: {
      const std::size_t end = std::min(text.find_first_of(kSpecial, at), text.size());
      return {.text = text.substr(at, end - at), .length = end - at};
    }
  }
}

/// Brackets that close nothing become words; those that are never closed weigh all that follows.
std::vector<Piece> pieces_of(const std::string& text) {
  using Kind = Piece::Kind;
  std::vector<Piece> pieces;
  std::vector<std::size_t> round, square;
  for (std::size_t at = 0; at < text.size(); at += pieces.back().length) {
    pieces.push_back(piece_at(text, at));
    Piece& piece = pieces.back();
    if (piece.kind == Kind::round) round.push_back(pieces.size() - 1);
    if (piece.kind == Kind::square) square.push_back(pieces.size() - 1);
    if (piece.kind != Kind::end_round && piece.kind != Kind::end_square) continue;
    auto& open = piece.kind == Kind::end_round ? round : square;
    if (open.empty()) {
      piece.kind = Kind::words;
      continue;
    }
    pieces[open.back()].weight = piece.weight;
    pieces[open.back()].closes = true;
    open.pop_back();
  }
  for (const std::size_t each : square)
    pieces[each].weight = 1 / kBracket;
  return pieces;
}

/// Refuses [from:to:when] and [one|other].
void refuse_turns(const std::string& field, const std::vector<Piece>& pieces) {
  using Kind = Piece::Kind;
  std::vector<bool> alternates;  // of the brackets that are open
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.kind == Kind::square && piece.closes) alternates.push_back(false);
    if (alternates.empty()) continue;
    if (piece.kind == Kind::words && piece.text.find('|') != piece.text.npos)
      alternates.back() = true;
    if (piece.kind != Kind::end_square) continue;
    std::string last = i >= 2 && pieces[i - 2].text == ":" ? pieces[i - 1].text : "";
    last.erase(0, last.find_first_not_of(" \t\r\n+"));
    last.erase(last.find_last_not_of(" \t\r\n") + 1);
    if (alternates.back() || parse_number<double>(last))
      throw refused(field, "words that change in mid-run, as in [red:blue:0.5] or [red|blue]",
                    "take turns", "write one of them, or escape brackets that are words: \\[ \\]");
    alternates.pop_back();
  }
}

bool is_letter(const std::string& text, std::size_t at) {
  if (at >= text.size()) return false;
  const auto letter = static_cast<unsigned char>(text[at]);
  return std::isalnum(letter) || letter == '_' || letter >= 0x80;
}

/// A word by itself, in capitals.
void refuse_word(const std::string& field, const std::string& text, const std::string& word,
                 const std::string& does) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(text, at - 1)) && !is_letter(text, at + word.size()))
      throw refused(field, word, does, "write it in small letters if it is a word");
  }
}

/// Removes comments: from "#" to the end of each line.
std::string without_comments(const std::string& prompt) {
  std::string text;
  for (std::size_t at = 0; at < prompt.size();) {
    const std::size_t mark = std::min(prompt.find('#', at), prompt.size());
    text.append(prompt, at, mark - at);
    at = mark;
    if (mark == prompt.size()) break;
    at = std::min(prompt.find('\n', mark), prompt.size() - 1) + 1;
    // A line that is nothing else takes the end of the line before with it.
    if (text.ends_with('\n')) text.pop_back();
    text += '\n';
  }
  return text;
}

/// Cuts <name:…> out, or refuses it.
std::string without_networks(const std::string& field, const std::string& prompt, bool cut) {
  std::string text;
  std::size_t kept = 0;
  for (std::size_t at = prompt.find('<'); at != prompt.npos; at = prompt.find('<', at + 1)) {
    std::size_t colon = at + 1;
    while (is_letter(prompt, colon))
      ++colon;
    if (colon == at + 1 || colon >= prompt.size() || prompt[colon] != ':') continue;
    const std::size_t end = prompt.find('>', colon);
    if (end == prompt.npos) break;
    if (end == colon + 1) continue;
    const std::string name = prompt.substr(at + 1, colon - at - 1);
    if (!cut)
      throw refused(field, beginning(prompt.substr(at, end + 1 - at)),
                    "loads a network by its name",
                    name == "lora" || name == "lyco"
                        ? "name its file: \"loras\": [{\"path\": FILE, \"scale\": NUMBER}]"
                        : "leave it out");
    text.append(prompt, kept, at - kept);
    kept = end + 1;
    at = end;
  }
  return text.append(prompt, kept);
}

/// Refuses words that weigh more or less than others.
std::string plain_words(const std::string& field, const std::vector<Piece>& pieces) {
  using Kind = Piece::Kind;
  constexpr double kSlip = 1e-9;
  std::vector<double> round{1}, square{1};  // what the brackets that are open make together
  std::string words;
  for (const Piece& piece : pieces) {
    if (piece.kind == Kind::round) round.push_back(round.back() * piece.weight);
    if (piece.kind == Kind::square) square.push_back(square.back() * piece.weight);
    if (piece.kind == Kind::end_round) round.pop_back();
    if (piece.kind == Kind::end_square) square.pop_back();
    if (piece.kind != Kind::words || piece.text.empty()) continue;
    refuse_word(field, piece.text, "BREAK", "begins another chunk of tokens");
    if (!(std::abs(round.back() * square.back() - 1) < kSlip))
      throw refused(field, beginning(piece.text) + " in brackets", "weighs these words",
                    "write them without, or escape brackets that are words: \\( \\)");
    words += piece.text;
  }
  return words;
}

}  // namespace

std::string words_of_prompt(const std::string& field, const std::string& prompt, PromptKind kind,
                            bool cut_networks) {
  std::string text = without_comments(prompt);
  if (kind == PromptKind::positive) {
    text = without_networks(field, text, cut_networks);
    refuse_word(field, text, "AND", "composes prompts");
  }
  const auto pieces = pieces_of(text);
  refuse_turns(field, pieces);
  return plain_words(field, pieces);
}

namespace {

using nlohmann::json;

/// Noise levels that a field asks for.
struct AskedLevels {
  std::string suffix;  // of a sampler's name; "" = the checkpoint's own
  std::string field;   // that is at fault where the sampler has no such levels
};

/// Our name for a sampler that `field` gives by the web UI's name or by ours.
std::string sampler_of(const std::string& field, const json& value, const AskedLevels& asked) {
  const auto& levels = asked.suffix;
  if (value == "Automatic" && levels.empty()) return "";
  if (value == "Automatic") throw bad_field(asked.field, "needs a sampler: give sampler_name");
  const std::string name = value.is_string() ? value.get<std::string>() : json_text(value);
  const auto sampler = spec::sampler_of_alias(name);
  if (!value.is_string() || !spec::is_sampler_name(sampler))
    throw bad_field(field, "is " + json_text(short_name(name)) + ", not " +
                               choices_text(spec::sampler_names()));
  // A name that says them itself goes first, as there.
  if (levels.empty() || spec::named_sampler(sampler).levels) return sampler;
  if (!spec::is_sampler_name(sampler + levels))
    throw bad_field(asked.field, "is " + json_text(levels.substr(1)) + ", but " + sampler +
                                     " has no choice of noise levels: give Automatic");
  return sampler + levels;
}

AskedLevels levels_of(const std::string& field, const json& scheduler) {
  if (scheduler.is_null() || scheduler == "") return {"", field};
  std::string known;
  for (const std::string& suffix : spec::level_suffixes()) {
    std::string word = suffix.substr(1);
    if (scheduler == word) return {suffix, field};
    word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
    if (scheduler == word) return {suffix, field};
    known += ", " + word;
  }
  if (scheduler == "Automatic" || scheduler == "automatic") return {"", field};
  throw bad_field(field, "is " + short_name(json_text(scheduler)) + ", not Automatic" + known);
}

bool is_given(const json& document, const std::string& name) {
  return document.contains(name) && !document.at(name).is_null() && document.at(name) != "";
}

/// sampler_name, sampler_index and scheduler made our `sampler`.
void set_sampler(json& document) {
  const AskedLevels levels = levels_of("scheduler", document.value("scheduler", json()));
  const bool named = is_given(document, "sampler_name");
  const std::string field = named                                 ? "sampler_name"
                            : is_given(document, "sampler_index") ? "sampler_index"
                                                                  : "sampler";
  if (field == "sampler" && levels.suffix.empty()) return;
  if (field != "sampler" && is_given(document, "sampler"))
    throw bad_field("sampler", "does not go with " + field);
  document["sampler"] =
      sampler_of(field, is_given(document, field) ? document.at(field) : json("Automatic"), levels);
}

/// Takes out an eta that changes nothing, which the web UI's clients send with every sampler: one
/// that the named sampler does not use, or that is fixed in it. Warns where a client has chosen it:
/// by themselves they send 0 or 1.
void drop_idle_eta(json& document, std::vector<std::string>& warnings) {
  const auto eta = document.find("eta");
  const json sampler = document.value("sampler", json());
  if (eta == document.end() || !eta->is_number() || !sampler.is_string()) return;
  const auto name = spec::sampler_of_alias(sampler.get<std::string>());
  const auto use = spec::eta_use(name);
  if (use != spec::EtaUse::none && use != spec::EtaUse::fixed) return;
  if (use == spec::EtaUse::fixed && *eta != 1)
    throw bad_field("eta", "is " + json_text(*eta) + ", but " + name + " takes 1 alone");
  if (*eta != 0 && *eta != 1)
    warnings.push_back("eta is " + json_text(*eta) + ", which changes nothing: " + name +
                       " has none");
  document.erase(eta);
}

/// A unit of the ControlNet extension, of alwayson_scripts.controlnet.args.
class ControlUnit {
 public:
  /// `number` counts units from 1.
  ControlUnit(const json& unit, std::size_t number) : unit_(unit), number_(number) {
    if (!unit.is_object()) throw wrong("is no object");
  }

  bool is_on() const {
    const auto on = unit_.find("enabled");
    if (on == unit_.end()) return true;
    if (!on->is_boolean()) throw wrong("enabled is neither true nor false");
    return *on;
  }

  void add_to(ImageRequest& request) const {
    refuse_what_is_not_done();
    const std::string picture = image();
    refuse_cropping(picture, request);
    request.control_images.push_back(picture);
    if (const auto model = text("model"); !model.empty() && model != "None")
      request.controlnets.push_back(model);
    request.control_scale.push_back(number("weight", 1));
    request.control_from.push_back(number("guidance_start", 0));
    request.control_until.push_back(number("guidance_end", 1));
  }

 private:
  ApiError wrong(const std::string& why) const {
    return bad_field("alwayson_scripts", fmt::format("controlnet's unit {}: {}", number_, why));
  }

  std::string text(const char* name) const {
    const auto at = unit_.find(name);
    if (at == unit_.end() || at->is_null()) return "";
    if (!at->is_string()) throw wrong(std::string(name) + " is not a text");
    return *at;
  }

  double number(const char* name, double otherwise) const {
    const auto at = unit_.find(name);
    if (at == unit_.end() || at->is_null()) return otherwise;
    if (!at->is_number()) throw wrong(std::string(name) + " is not a number");
    return *at;
  }

  /// A value by its number or by its name; `plain` are those that are done here.
  void only(const char* name, std::initializer_list<json> plain, const std::string& remedy) const {
    const auto at = unit_.find(name);
    if (at == unit_.end() || at->is_null() || std::ranges::count(plain, *at) > 0) return;
    const std::string value = at->is_string()      ? beginning(at->get<std::string>())
                              : at->is_primitive() ? json_text(*at)
                                                   : "a list or an object";
    throw wrong(std::string(name) + " is " + value + ", which is not done here: " + remedy);
  }

  void refuse_what_is_not_done() const {
    only("module", {"none", "None", ""},
         "give the picture of edges, depth or a pose itself, and none");
    only("control_mode", {0, "Balanced"},
         "ControlNets count in both branches alike: give Balanced");
    only("mask", {"", nullptr}, "leave it out");
    only("effective_region_mask", {"", nullptr}, "leave it out");
    only("batch_images", {"", nullptr}, "give one picture in image");
    static const std::vector<std::string_view> kTaken = {
        "enabled", "image", "input_image", "model", "weight", "guidance_start", "guidance_end",
        "module", "control_mode", "mask", "effective_region_mask", "batch_images", "resize_mode",
        // Settings of preprocessors, of which there are none, and of what a server keeps.
        "processor_res", "threshold_a", "threshold_b", "pixel_perfect", "low_vram", "lowvram",
        "save_detected_map", "hr_option", "input_mode", "is_ui", "inpaint_crop_input_image",
        "batch_mask_dir", "animatediff_batch", "batch_modifiers", "batch_image_files",
        "batch_keyframe_idx", "ipadapter_input", "output_dir", "loopback", "advanced_weighting",
        "union_control_type", "pulid_mode", "use_preview_as_input", "generated_image"};
    for (const auto& [name, value] : unit_.items())
      if (std::ranges::count(kTaken, name) == 0)
        throw wrong(json_text(short_name(name)) + " is no field of it");
    only("union_control_type", {"Unknown", "", nullptr}, "leave it out");
    only("ipadapter_input", {"", nullptr}, "IP-Adapters are not computed here: leave it out");
    only("advanced_weighting", {nullptr}, "a ControlNet has one weight: leave it out");
    only("loopback", {false}, "give false");
  }

  std::string image() const {
    const char* name = unit_.contains("image") ? "image" : "input_image";
    const auto at = unit_.find(name);
    if (at == unit_.end() || at->is_null()) throw wrong("image is missing");
    // As an object the extension has the picture and a mask apart.
    if (at->is_object() && at->contains("mask") && !at->at("mask").is_null() &&
        at->at("mask") != "")
      throw wrong("mask is given, which is not done here: leave it out");
    const json& value = at->is_object() && at->contains("image") ? at->at("image") : *at;
    if (!value.is_string()) throw wrong("image is not a text of base64");
    return picture_of_field("alwayson_scripts", value.get<std::string>(),
                            models::AlphaUse::over_white);
  }

  /// Pictures are brought to the size without keeping their proportions. The extension crops or
  /// fills them unless it is told not to, which is another picture where the proportions differ.
  void refuse_cropping(const std::string& picture, const ImageRequest& request) const {
    const auto mode = unit_.value("resize_mode", json("Crop and Resize"));
    if (mode == 0 || mode == "Just Resize" || mode == "Scale to Fit (Inner Fit)") return;
    const auto header = models::read_picture_header(picture);
    const auto across = static_cast<std::int64_t>(header.width()) * request.height;
    if (across == static_cast<std::int64_t>(header.height()) * request.width) return;
    throw wrong(
        fmt::format("image has {} x {} pixels, which are other proportions than {} x {}, and "
                    "is not cropped here: crop it before, or give resize_mode 0",
                    header.width(), header.height(), request.width, request.height));
  }

  const json& unit_;
  std::size_t number_;
};

void read_control_units(const json& args, ImageRequest& request) {
  if (!args.is_array())
    throw bad_field("alwayson_scripts", "has controlnet, whose args are no list of units");
  std::vector<double>* const numbers[] = {&request.control_scale, &request.control_from,
                                          &request.control_until};
  if (std::ranges::any_of(numbers, [](const auto* given) { return !given->empty(); }))
    throw bad_field("alwayson_scripts",
                    "has controlnet, whose units have weight, guidance_start and guidance_end: "
                    "leave out control_scale, control_from and control_until");
  if (args.size() > wire::kMaxControlNets)
    throw bad_field("alwayson_scripts",
                    fmt::format("has {} units of controlnet: at most {} are taken", args.size(),
                                wire::kMaxControlNets));
  for (std::size_t i = 0; i < args.size(); ++i) {
    const ControlUnit unit(args[i], i + 1);
    if (unit.is_on()) unit.add_to(request);
  }
  // Numbers that nobody has changed are not given: not all models that follow a picture have them.
  constexpr double kOwn[] = {1, 0, 1};
  for (std::size_t i = 0; i < std::size(kOwn); ++i)
    if (std::ranges::all_of(*numbers[i], [&](double value) { return value == kOwn[i]; }))
      numbers[i]->clear();
}

void read_scripts(Fields& fields, ImageRequest& request) {
  const json* scripts = fields.any("alwayson_scripts");
  if (!scripts || scripts->empty()) return;
  if (!scripts->is_object()) throw bad_field("alwayson_scripts", "is no object of scripts");
  for (const auto& [name, script] : scripts->items()) {
    const bool asks =
        !script.is_object() || (script.contains("args") && !script.at("args").empty());
    std::string lower = name;
    std::ranges::transform(lower, lower.begin(), [](unsigned char letter) {
      return static_cast<char>(std::tolower(letter));
    });
    if (asks && lower == "controlnet" && script.is_object()) {
      read_control_units(script.at("args"), request);
    } else if (asks)
      throw bad_field("alwayson_scripts", "has " + json_text(short_name(name)) +
                                              " with args: no script is run here, leave it out");
  }
}

/// inpainting_mask_invert: 0 and 1, or false and true.
bool says_invert(Fields& fields) {
  const json* value = fields.any("inpainting_mask_invert");
  if (!value || *value == 0 || *value == false) return false;
  if (*value == 1 || *value == true) return true;
  throw bad_field("inpainting_mask_invert", "is neither 0 nor 1");
}

void invert(std::string& mask) {
  models::Pixels pixels = models::load_picture(mask);
  for (auto& value : pixels.rgb)
    value = static_cast<std::uint8_t>(255 - value);
  mask = models::write_png(pixels);
}

void read_mask(Fields& fields, WebuiCall& call) {
  const auto mask = fields.text("mask");
  if (!mask || mask->empty()) {
    // The other fields of a mask describe one that is not there.
    for (const CallField& field : kCallFields) {
      if (field.name.starts_with("mask_") || field.name.starts_with("inpaint"))
        fields.any(std::string(field.name));
    }
    return;
  }
  call.submission.request.mask_image = picture_of_field("mask", *mask, models::AlphaUse::mask);
  if (says_invert(fields)) invert(call.submission.request.mask_image);
  std::string unsaid;
  for (const auto& [name, value] :
       {std::pair("mask_blur", "0"), {"inpainting_fill", "1"}, {"inpaint_full_res", "false"}}) {
    if (!fields.has(name)) unsaid += (unsaid.empty() ? "" : ", ") + std::string(name) + " " + value;
  }
  if (!unsaid.empty())
    call.warnings.push_back(
        "of the mask these hold, which the web UI has otherwise where nothing "
        "is said: " +
        unsaid);
}

/// Returns whether a name of the second pass means the same as in the first.
bool is_same(const std::optional<std::string>& name) {
  return !name || name->empty() || name->starts_with("Use same ");
}

std::string sampler_of_second_pass(Fields& fields, const std::string& first) {
  const auto name = fields.text("hr_sampler_name");
  const auto scheduler = fields.text("hr_scheduler");
  if (is_same(name) && is_same(scheduler)) return first;
  const json* of_first = fields.any("scheduler");
  const AskedLevels levels = levels_of("hr_scheduler", !is_same(scheduler) ? json(*scheduler)
                                                       : of_first          ? *of_first
                                                                           : json());
  if (!is_same(name)) return sampler_of("hr_sampler_name", *name, levels);
  for (const char* field : {"sampler_name", "sampler_index", "sampler"}) {
    if (const auto given = fields.text(field); given && !given->empty())
      return sampler_of(field, *given, levels);
  }
  return sampler_of("hr_sampler_name", "Automatic", levels);
}

/// The size, brought down to whole latents, as the web UI's VAE does.
void set_size_of_second_pass(Fields& fields, WebuiCall& call, ImageRequest& request) {
  constexpr int kLatent = 8;  // pixels of a side
  const auto [width, height] = std::pair(request.width, request.height);
  for (const auto& [field, side] : {std::pair("width", width), {"height", height}}) {
    if (side == 0)
      throw bad_field(
          field, "is 0, the model's own size, which is not known here: give pixels to enlarge");
  }
  if (static_cast<std::uint64_t>(width) * static_cast<std::uint64_t>(height) >
      models::kMaxPicturePixels) {
    throw bad_field("width", fmt::format("and height make a picture of {} x {} pixels: a second "
                                         "pass begins with one of {} at most",
                                         width, height, models::kMaxPicturePixels));
  }
  const double scale = fields.number("hr_scale", {1, 8}).value_or(2);
  const auto x = static_cast<int>(fields.whole("hr_resize_x", 0, wire::kMaxPixels).value_or(0));
  const auto y = static_cast<int>(fields.whole("hr_resize_y", 0, wire::kMaxPixels).value_or(0));
  if (x != 0 && y != 0 && std::int64_t{x} * height != std::int64_t{y} * width)
    throw bad_field("hr_resize_y",
                    "and hr_resize_x have other proportions than the picture, which "
                    "is not cut here: leave one of them out");
  const bool by_scale = x == 0 && y == 0;
  if (by_scale)
    call.second_pass_says["Hires upscale"] = json::parse(number_text(scale));
  else
    call.second_pass_says["Hires resize"] = fmt::format("{}x{}", x, y);
  const auto larger_width = by_scale ? static_cast<std::int64_t>(width * scale)
                            : x != 0 ? x
                                     : std::int64_t{y} * width / height;
  const auto larger_height = by_scale ? static_cast<std::int64_t>(height * scale)
                             : y != 0 ? y
                                      : std::int64_t{x} * height / width;
  for (const auto side : {larger_width, larger_height}) {
    if (side < kLatent || side > wire::kMaxPixels) {
      throw bad_field(by_scale ? "hr_scale"
                      : x != 0 ? "hr_resize_x"
                               : "hr_resize_y",
                      fmt::format("makes {} x {} pixels: a side has {} to {}", larger_width,
                                  larger_height, kLatent, wire::kMaxPixels));
    }
  }
  request.width = static_cast<int>(larger_width / kLatent * kLatent);
  request.height = static_cast<int>(larger_height / kLatent * kLatent);
}

/// An empty one is none, as there, where SDXL's text is zeros then.
std::optional<std::string> negative_of(const std::string& field, const std::string& text) {
  auto words = words_of_prompt(field, text, PromptKind::negative);
  return words.empty() ? std::nullopt : std::optional(std::move(words));
}

/// The strength at which `done` of `steps` steps are computed. Pipelines round down either the
/// steps that they do or those that they leave out: where floating-point numbers allow it, both
/// come out.
double strength_of_steps(int done, int steps) {
  const double quotient = static_cast<double>(done) / steps;
  const double above = std::nextafter(quotient, 2);
  for (const double strength : {quotient, above, std::nextafter(quotient, 0)}) {
    if (strength * steps == done) return strength;
  }
  return quotient * steps < done ? above : quotient;
}

/// Sets steps and strength so that all steps that are asked for are computed: the last of a longer
/// schedule, as in the web UI, whose setup_img2img_steps is the source.
void set_steps_of_second_pass(Fields& fields, WebuiCall& call, ImageRequest& request) {
  for (const auto& [field, values] :
       {std::pair("timesteps", &request.timesteps), {"sigmas", &request.sigmas}}) {
    if (!values->empty())
      throw bad_field(field, "does not go with enable_hr, whose second pass has steps of its own");
  }
  const double most = wire::kRequestFields.steps.typed.most;
  const double strength = fields.number("denoising_strength", {0, 1}).value_or(0.75);
  if (strength == 0)
    throw bad_field("denoising_strength",
                    "is 0, at which a second pass paints nothing: give more, or no enable_hr");
  const auto asked =
      fields.whole("hr_second_pass_steps", 0, static_cast<std::int64_t>(most)).value_or(0);
  const int done = asked > 0 ? static_cast<int>(asked) : request.steps;
  const double steps = done / std::min(strength, 0.999);
  if (!(steps <= most)) {
    throw bad_field("denoising_strength",
                    fmt::format("is {}: {} steps would be the last of more than {}",
                                number_text(strength), done, number_text(most)));
  }
  request.steps = static_cast<int>(steps);
  request.strength = strength_of_steps(done, request.steps);
  call.denoising_strength = strength;
  if (asked > 0) call.second_pass_says["Hires steps"] = asked;
}

/// Reads the highres fix. The picture is enlarged as image to image enlarges the one that it begins
/// with: by Lanczos.
void read_second_pass(Fields& fields, WebuiCall& call, bool cut_networks) {
  if (!fields.flag("enable_hr").value_or(false)) {
    for (const CallField& field : kCallFields) {
      if (field.name.starts_with("hr_") || field.name == "denoising_strength")
        fields.any(std::string(field.name));
    }
    return;
  }
  if (!call.submission.request.control_images.empty())
    throw bad_field(
        "enable_hr",
        "does not go with controlnet's units, which a second pass has not: leave it out");
  const auto upscaler = fields.choice("hr_upscaler", {"Lanczos", "None"});
  if (!upscaler)
    throw bad_field(
        "hr_upscaler",
        "is left out, which in the web UI is Latent: that is not done here, give Lanczos");
  if (const auto model = fields.text("hr_checkpoint_name"); !is_same(model))
    call.second_model = *model;
  auto& says = call.second_pass_says;
  ImageRequest request = call.submission.request;
  set_size_of_second_pass(fields, call, request);
  request.sampler = sampler_of_second_pass(fields, request.sampler);
  if (request.sampler != call.submission.request.sampler) says["Hires sampler"] = request.sampler;
  set_steps_of_second_pass(fields, call, request);
  if (const auto prompt = fields.text("hr_prompt").value_or(""); !prompt.empty())
    request.prompts = {words_of_prompt("hr_prompt", prompt, PromptKind::positive, cut_networks)};
  if (request.prompts != call.submission.request.prompts) says["Hires prompt"] = request.prompts[0];
  if (const auto prompt = fields.text("hr_negative_prompt").value_or(""); !prompt.empty())
    request.negative_prompt = negative_of("hr_negative_prompt", prompt);
  if (request.negative_prompt != call.submission.request.negative_prompt)
    says["Hires negative prompt"] = request.negative_prompt.value_or("");
  says["Hires upscaler"] = *upscaler;
  request.images_per_prompt = 1;
  request.picture_seeds.clear();
  constexpr int kSide = 8;
  request.init_image =
      models::write_png({kSide, kSide, std::vector<std::uint8_t>(3 * kSide * kSide)});
  call.second_pass = std::move(request);
}

}  // namespace

std::string parameters_of_second_pass(std::string first, double denoising_strength,
                                      const nlohmann::ordered_json& says) {
  std::string added = ", Denoising strength: " + number_text(denoising_strength);
  for (const auto& [name, value] : says.items())
    added += ", " + name + ": " +
             (value.is_string() ? wire::setting_text(value.get<std::string>()) : value.dump());
  return first.insert(std::min(first.rfind(", Version: "), first.size()), added);
}

std::string setting_of(const std::string& parameters, const std::string& name) {
  const std::string line = ", " + parameters.substr(parameters.rfind('\n') + 1);
  const std::string before = ", " + name + ": ";
  const std::size_t at = line.find(before);
  if (at == line.npos) return "";
  const std::size_t begin = at + before.size();
  return line.substr(begin, line.find(", ", begin) - begin);
}

std::string model_of_settings(const json& settings, const std::string& within) {
  if (!settings.is_object())
    throw bad_field(within.empty() ? "body" : within, "is no object of settings");
  try {
    Fields fields(settings);
    const auto model = fields.text("sd_model_checkpoint").value_or("");
    fields.settle(kSettings);
    fields.refuse_rest();
    return model;
  } catch (const ApiError& error) {
    if (within.empty()) throw;
    throw ApiError(error, within + ": " + error.what(), within);
  }
}

namespace {

/// Names of ours that fields of the web UI have.
std::map<std::string, std::string> names_of(Call kind) {
  std::map<std::string, std::string> names = {{"cfg_scale", "guidance_scale"}};
  if (kind == kImg2Img) names["denoising_strength"] = "strength";
  return names;
}

WebuiCall read_webui(json document, Call kind, std::uint64_t seed) {
  WebuiCall call;
  if (document.is_object()) {
    set_sampler(document);
    drop_idle_eta(document, call.warnings);
    // An unsigned number is never -1, although the library's comparison says so of the largest.
    if (is_given(document, "seed") && !document.at("seed").is_number_unsigned() &&
        document.at("seed") == -1)
      document.erase("seed");
  }
  Fields fields(std::move(document), names_of(kind));
  Submission& submission = call.submission;
  ImageRequest& request = submission.request;
  // What the web UI takes where nothing is said.
  request.seed = seed;
  request.width = request.height = 512;
  request.steps = 50;
  request.guidance_scale = 7;
  if (kind == kImg2Img) request.strength = 0.75;
  const bool cut_networks = fields.flag("disable_extra_networks").value_or(false);
  request.prompts = {words_of_prompt("prompt", fields.text("prompt").value_or(""),
                                     PromptKind::positive, cut_networks)};
  const auto pictures = fields.whole("batch_size", 1, 16).value_or(1);
  const auto batches = fields.whole("n_iter", 1, 16).value_or(1);
  fields.read_request(request);
  need_pictures(request);
  take_one_frame(request);
  request.negative_prompt = negative_of("negative_prompt", request.negative_prompt.value_or(""));
  request.images_per_prompt = static_cast<int>(pictures * batches);
  call.batch_size = static_cast<int>(pictures);
  // As there: each picture can be made again alone, with the seed that the answer tells.
  if (request.picture_seeds.empty() && request.images_per_prompt > 1) {
    for (int picture = 0; picture < request.images_per_prompt; ++picture)
      request.picture_seeds.push_back(request.seed + static_cast<std::uint64_t>(picture));
  }
  fields.read_degrees(submission.parallelism);
  if (kind == kImg2Img) {
    call.denoising_strength = request.strength;
    const auto images = fields.texts("init_images");
    if (!images || images->size() != 1)
      throw bad_field("init_images", "is not a list of one picture");
    // Models that edit pictures take it beside the text.
    request.images = {
        picture_of_field("init_images", images->front(), models::AlphaUse::over_white)};
    request.images_as_taken = true;
    read_mask(fields, call);
  }
  if (const json* settings = fields.any("override_settings"))
    submission.model = model_of_settings(*settings, "override_settings");
  read_scripts(fields, request);
  if (kind == kTxt2Img) read_second_pass(fields, call, cut_networks);
  call.send_images = fields.flag("send_images").value_or(true);
  // Taken above, under our names.
  for (const char* name : {"sampler_name", "sampler_index", "scheduler"})
    fields.any(name);
  fields.settle(kind);
  fields.refuse_rest();
  return call;
}

}  // namespace

WebuiCall parse_webui(const std::string& body, Call kind, std::uint64_t seed) {
  json document = parse_body(body);
  const FieldWords words = words_of(document, kind, names_of(kind));
  WebuiCall call = words.tell([&] { return read_webui(std::move(document), kind, seed); });
  call.words = words;
  return call;
}

}  // namespace troupe::web
