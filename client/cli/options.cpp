#include "client/cli/options.h"

#include <arpa/inet.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <random>
#include <regex>
#include <sstream>

#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/suggest.h"
#include "client/cli/terminal.h"

namespace troupe::cli {

Option* Option::check(const Check& check) {
  option_.check(CLI::Validator(check.wrong(), ""));
  if (!check.words().empty()) words_ = check.words();
  return this;
}

Option* Option::transform(const Check& check) {
  option_.transform(CLI::Validator(check.wrong(), ""));
  if (!check.words().empty()) words_ = check.words();
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_.type_name(name);
  return this;
}

Option* Option::kind(ValueKind kind) {
  kind_ = kind;
  return this;
}

Option* Option::group(const std::string& heading) {
  option_.group(heading);
  return this;
}

Option* Option::capture_default_str() {
  option_.capture_default_str();
  return this;
}

Option* Option::default_str(const std::string& text) {
  option_.default_str(text);
  return this;
}

Option* Option::envname(const std::string& name) {
  environment_ = name;
  return this;
}

Option* Option::allow_extra_args(bool allowed) {
  option_.allow_extra_args(allowed);
  return this;
}

Option* Option::required() {
  option_.required();
  return this;
}

Option* Option::configurable(bool may) {
  option_.configurable(may);
  return this;
}

Option* Option::restored_by(std::function<void()> restore) {
  restore_ = std::move(restore);
  return this;
}

void Option::set_default(const std::vector<std::string>& values, Source source,
                         const std::string& place) {
  if (source_ == Source::built_in) built_in_default_ = option_.get_default_str();
  source_ = source;
  place_ = place;
  try {
    for (const std::string& value : values)
      option_.add_result(value);
    option_.run_callback();
  } catch (const CLI::ParseError& error) {
    option_.clear();
    throw UsageError(parse_error_text(error.what()));
  }
  option_.clear();
  option_.default_str(CLI::detail::join(values, " "));
}

void Option::leave_default_out() {
  if (restore_) restore_();
  option_.default_str(built_in_default_);
  source_ = Source::built_in;
  place_.clear();
}

Source Option::source() const {
  return count() > 0 ? Source::command_line : source_;
}

bool Option::is_configurable() const {
  return option_.get_configurable();
}

std::string Option::environment() const {
  if (!environment_.empty()) return environment_;
  return option_.get_lnames().empty() ? "" : variable_of(option_.get_lnames().front());
}

void Option::show_environment() const {
  option_.envname(environment_);
}

std::size_t Option::count() const {
  return option_.count();
}

std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_.get_lnames())
    names.push_back("--" + name);
  for (const std::string& name : option_.get_snames())
    names.push_back("-" + name);
  return names;
}

std::string Option::value_name() const {
  if (option_.get_items_expected_max() == 0) return "";
  return option_.get_positional() ? option_.get_name() : option_.get_type_name();
}

ValueKind Option::kind() const {
  if (kind_ != ValueKind::none) return kind_;
  const std::string name = value_name();
  if (name.empty()) return ValueKind::none;
  if (!words_.empty()) return ValueKind::words;
  if (name.starts_with("DIR")) return ValueKind::folder;
  return name.starts_with("F.") || name.starts_with("FILE") ? ValueKind::file : ValueKind::text;
}

std::string Option::file_ending() const {
  const std::string name = value_name();
  const auto dot = name.find('.');
  return dot == std::string::npos ? "" : name.substr(dot);
}

Options::Options(const std::string& description, const std::string& name)
    : own_(std::make_unique<CLI::App>(description, name)), app_(own_.get()) {
  app_->formatter(help_format());
  app_->allow_extras();
}

Options::Options(Options& parent, CLI::App& app) : app_(&app), parent_(&parent) {
  app_->allow_extras();
}

Options::~Options() = default;

Options& Options::add_command(const std::string& name, const std::string& description) {
  app_->require_subcommand(0, 1);
  commands_.emplace_back(new Options(*this, *app_->add_subcommand(name, description)));
  return *commands_.back();
}

void Options::set_version(const std::string& version) {
  app_->set_version_flag("--version", version);
}

void Options::set_footer(const std::string& text) {
  app_->footer(text);
}

void Options::usual_help() {
  app_->get_help_ptr()->group(kUsualOptions);
}

void Options::add_rivals(std::vector<std::string> names) {
  rivals_.push_back(std::move(names));
}

bool Options::has_stronger_rival(const Option& option) const {
  for (const auto& group : rivals_) {
    const auto is_named = [&](const std::string& name) { return find(name) == &option; };
    if (std::ranges::none_of(group, is_named)) continue;
    for (const std::string& name : group) {
      const Option* other = find(name);
      if (other != nullptr && other != &option && other->source() > option.source()) return true;
    }
  }
  return false;
}

Option* Options::added(CLI::Option& option, std::function<void()> restore) {
  return all_.emplace_back(std::make_unique<Option>(option, std::move(restore))).get();
}

template <class T>
Option* Options::add_option(const std::string& name, T& value, const std::string& help) {
  return added(*app_->add_option(name, value, help), [&value, before = value] { value = before; });
}

template <class T>
Option* Options::add_option_function(const std::string& name, std::function<void(const T&)> take,
                                     const std::string& help) {
  return added(*app_->add_option_function<T>(name, take, help));
}

Option* Options::add_flag(const std::string& name, bool& value, const std::string& help) {
  return added(*app_->add_flag(name, value, help), [&value, before = value] { value = before; });
}

template <class T>
Option* Options::add_list_option(const std::string& name, std::vector<T>& list,
                                 const std::string& help, const Check& check) {
  const auto take = [&list](const std::string& text) {
    CLI::detail::lexical_cast(text, list.emplace_back());
  };
  const auto take_all = [&list, check, take](const std::vector<std::string>& texts) {
    list.clear();
    for (const auto& text : texts)
      read_list(text, check, take);
  };
  const Check each([check](const std::string& text) { return read_list(text, check); });
  return add_option_function<std::vector<std::string>>(name, take_all, help)
      ->restored_by([&list, before = list] { list = before; })
      ->allow_extra_args(false)
      ->check(each);
}

// The types that options have.
#define TROUPE_OPTION_OF(...) \
  template Option* Options::add_option(const std::string&, __VA_ARGS__&, const std::string&);
TROUPE_OPTION_OF(int)
TROUPE_OPTION_OF(std::uint32_t)
TROUPE_OPTION_OF(std::uint64_t)
TROUPE_OPTION_OF(double)
TROUPE_OPTION_OF(std::string)
TROUPE_OPTION_OF(std::optional<int>)
TROUPE_OPTION_OF(std::optional<std::uint64_t>)
TROUPE_OPTION_OF(std::optional<double>)
TROUPE_OPTION_OF(std::optional<std::string>)
TROUPE_OPTION_OF(std::vector<std::string>)
TROUPE_OPTION_OF(std::vector<std::uint64_t>)
#undef TROUPE_OPTION_OF
template Option* Options::add_option_function(const std::string&,
                                              std::function<void(const double&)>,
                                              const std::string&);
template Option* Options::add_option_function(const std::string&,
                                              std::function<void(const std::int64_t&)>,
                                              const std::string&);
template Option* Options::add_option_function(const std::string&,
                                              std::function<void(const std::string&)>,
                                              const std::string&);
template Option* Options::add_list_option(const std::string&, std::vector<int>&, const std::string&,
                                          const Check&);
template Option* Options::add_list_option(const std::string&, std::vector<double>&,
                                          const std::string&, const Check&);

Option* Options::get_option(const std::string& name) const {
  const CLI::Option* wanted = app_->get_option(name);
  return std::ranges::find_if(all_, [&](const auto& one) { return &one->cli() == wanted; })->get();
}

std::size_t Options::count(const std::string& name) const {
  return app_->count(name);
}

const Option* Options::find(const std::string& name) const {
  const CLI::Option* wanted = app_->get_option_no_throw(name);
  if (wanted == nullptr) return nullptr;
  const auto found =
      std::ranges::find_if(all_, [&](const auto& one) { return &one->cli() == wanted; });
  return found == all_.end() ? nullptr : found->get();
}

/// Returns the words with -o=X as -o and X. CLI11 would take =X for the value. A word that an
/// option in front of it takes stays as it is, and so does what follows --.
std::vector<std::string> Options::with_values_apart(const std::vector<std::string>& words) const {
  std::vector<std::string> apart;
  const Options* at = this;
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word == "--") {
      apart.insert(apart.end(), word, words.end());
      break;
    }
    apart.push_back(*word);
    bool takes_next = false;
    if (word->starts_with("--")) {
      const Option* option = at->find(*word);
      takes_next = option != nullptr && !option->value_name().empty();
    } else if (word->starts_with('-')) {
      for (std::size_t letter = 1; letter < word->size(); ++letter) {
        const Option* option = at->find({'-', (*word)[letter]});
        if (option == nullptr) break;
        if (option->value_name().empty()) continue;
        takes_next = letter + 1 == word->size();
        if (!takes_next && (*word)[letter + 1] == '=') {
          apart.back().erase(letter + 1);
          apart.push_back(word->substr(letter + 2));
        }
        break;
      }
    } else {
      for (const auto& command : at->commands_)
        if (command->name() == *word) at = command.get();
    }
    if (takes_next && word + 1 != words.end()) apart.push_back(*++word);
  }
  return apart;
}

Options::Parsed Options::parse(std::vector<std::string> words) {
  words = with_values_apart(words);
  std::ranges::reverse(words);
  auto outcome = Parsed::yes;
  try {
    app_->parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    outcome = Parsed::help;
  } catch (const CLI::CallForVersion&) {
    outcome = Parsed::version;
  } catch (const CLI::ParseError& error) {
    throw UsageError(parse_error_text(error.what()));
  }
  // CLI11 would have read the variables itself.
  for (const auto& option : all_)
    option->show_environment();
  for (const auto& command : commands_)
    for (const auto& option : command->all_)
      option->show_environment();
  return outcome;
}

Options::Parsed Options::parse(int argc, const char* const* argv) {
  return parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

bool Options::parsed() const {
  return app_->parsed();
}

std::vector<std::string> Options::remaining() const {
  return app_->remaining();
}

std::string Options::complaint(const std::vector<std::string>& words) const {
  for (const std::string& word : words) {
    if (word == "--") break;
    if (const auto found = refused_.find(word.substr(0, word.find('='))); found != refused_.end())
      return "unknown option " + found->first + ": " + found->second;
  }
  return unexpected_text(*app_, words);
}

std::string Options::name() const {
  return app_->get_name();
}

std::string Options::help() const {
  return app_->help();
}

namespace {

std::string in_quotes(const std::string& text) {
  return "\"" + text + "\"";
}

template <class T>
std::optional<T> parsed(std::string_view text) {
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  return parse_number<T>(text);
}

std::optional<double> finite(const std::string& text) {
  const auto value = parsed<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

Check whole(std::int64_t least, std::int64_t most) {
  return Check([least, most](std::string& text) -> std::string {
    const auto value = parsed<std::int64_t>(text);
    if (!value && !finite(text)) return in_quotes(text) + " is not a number";
    if (!value && text.find_first_of(".eE") != std::string::npos)
      return text + " is not a whole number";
    if (value && *value >= least && *value <= most) return "";
    return fmt::format("{} is out of bounds: a whole number from {} to {} is needed", text, least,
                       most);
  });
}

Check number(double least, double most) {
  return Check([least, most](std::string& text) -> std::string {
    const auto value = finite(text);
    if (!value) return in_quotes(text) + " is not a number";
    if (*value >= least && *value <= most) return "";
    return text + " is out of bounds: a number from " + number_text(least) + " to " +
           number_text(most) + " is needed";
  });
}

Check number_above(double least, double most) {
  return Check([least, most](std::string& text) -> std::string {
    const auto value = finite(text);
    if (!value) return in_quotes(text) + " is not a number";
    if (*value > least && *value <= most) return "";
    return text + " is out of bounds: a number above " + number_text(least) + ", up to " +
           number_text(most) + ", is needed";
  });
}

Check seed_check() {
  return Check([](std::string& text) -> std::string {
    if (text == "random") {
      std::random_device device;
      // As short as other tools' seeds are.
      text = std::to_string(std::uint32_t{device()});
    }
    if (parse_number<std::uint64_t>(text)) return "";
    return in_quotes(text) + " is not a whole number from 0 to 2^64 - 1" +
           (text == "-1" ? "; random picks one" : "");
  });
}

Check one_of(std::vector<std::string> words) {
  return Check(
      [words](std::string& text) -> std::string {
        const bool known = std::find(words.begin(), words.end(), text) != words.end();
        return known ? "" : not_one_of(text, words);
      },
      words);
}

Check numeric_address() {
  return Check([](std::string& text) -> std::string {
    in6_addr address{};
    if (inet_pton(AF_INET, text.c_str(), &address) == 1) return "";
    if (inet_pton(AF_INET6, text.c_str(), &address) == 1) return "";
    return in_quotes(text) + " is not an address in numbers, as 10.0.0.1";
  });
}

std::string read_list(const std::string& text, const Check& check,
                      const std::function<void(const std::string&)>& take) {
  int place = 1;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1, ++place) {
    end = text.find(',', begin);
    auto part = text.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.find_first_not_of(' ') == std::string::npos)
      return fmt::format("place {} of the list {} is empty", place, in_quotes(text));
    if (auto wrong = check(part); !wrong.empty()) return wrong;
    if (take) take(part);
  }
  return "";
}

Check not_empty() {
  return Check([](std::string& text) -> std::string { return text.empty() ? "is empty" : ""; });
}

namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kNarrowestHelp = 60;
constexpr std::array kNeeded = {"ID", "FILE", "PLACE", "JOB"};

std::size_t help_width() {
  const std::size_t width = output_width();
  return width == 0 ? kWidth : std::clamp(width, kNarrowestHelp, kWidth);
}

/// Breaks a text into lines that leave `left` characters for what stands to their left.
std::string fitted(const std::string& text, std::size_t left) {
  std::string lines;
  for (const auto& line : wrapped(text, help_width() - left))
    lines += (lines.empty() ? "" : "\n") + line;
  return lines;
}

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at; (at = text.find("\n\n\n")) != std::string::npos;)
      text.erase(at, 1);
    while (text.ends_with("\n\n"))
      text.pop_back();
    return text;
  }
  std::string make_description(const CLI::App* app) const override {
    return fitted(app->get_description(), 0) + "\n";
  }
  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    return CLI::Formatter::make_group(fitted(group, 1), is_positional, std::move(options));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return fitted(option->get_description(), column_width_);
  }
  std::string make_subcommand(const CLI::App* verb) const override {
    std::stringstream out;
    CLI::detail::format_help(out, verb->get_name(), fitted(verb->get_description(), column_width_),
                             column_width_);
    return out.str();
  }
  /// Paragraphs are fitted; lines that are indented, as examples, stand as they are.
  std::string make_footer(const CLI::App* app) const override {
    std::stringstream lines(app->get_footer());
    std::string text;
    for (std::string line; std::getline(lines, line);)
      text += (line.starts_with("  ") || line.empty() ? line : fitted(line, 0)) + "\n";
    return text;
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_usage(option);
    const auto name = option->get_name();
    const bool needed = option->get_default_str().empty() &&
                        std::find(kNeeded.begin(), kNeeded.end(), name) != kNeeded.end();
    if (needed && text.starts_with('[')) text = text.substr(1, text.size() - 2);
    return text;
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() {
  return std::make_shared<HelpFormat>();
}

std::string one_line(std::string text) {
  text = on_one_line(without_rooms(text));
  text.erase(text.find_last_not_of(" .") + 1);
  return text;
}

std::string by_option(const std::string& what, const RoomOptions& options) {
  for (const auto& [room, option] : options) {
    const std::string tag = "[" + room + "] ";
    if (what.starts_with(tag)) return option + " " + what.substr(tag.size());
  }
  return what;
}

std::string parse_error_text(const std::string& what) {
  static const std::regex kTwice("(\\S+): At Most 1 required but received \\d+");
  static const std::regex kMissing("(\\S+): 1 required (\\S+) missing");
  static const std::regex kConversion("Could not convert: (\\S+) = (.*)");
  std::smatch match;
  if (std::regex_match(what, match, kTwice)) return match.str(1) + " is given twice";
  if (std::regex_match(what, match, kMissing))
    return match.str(1) + " needs " + match.str(2) + " after it";
  if (std::regex_match(what, match, kConversion))
    return match.str(1) + ": \"" + match.str(2) + "\" is not a number";
  return what;
}

namespace {

/// "; --x is an option of `troupe submit` and `troupe wait`"; "" where it is one of none, or many.
std::string whose_option(const CLI::App& app, const std::string& name) {
  constexpr std::size_t kMostNamed = 3;
  if (app.get_parent() == nullptr) return "";
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_parent()->get_subcommands(nullptr))
    if (verb != &app && verb->get_option_no_throw(name) != nullptr)
      verbs.push_back("`troupe " + verb->get_name() + "`");
  if (verbs.empty() || verbs.size() > kMostNamed) return "";
  std::string text;
  for (std::size_t i = 0; i < verbs.size(); ++i)
    text += (i == 0 ? "" : i + 1 == verbs.size() ? " and " : ", ") + verbs[i];
  return "; " + name + " is an option of " + text;
}

}  // namespace

std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& words) {
  const auto end_of_options = std::ranges::find(words, "--");
  std::vector<std::string> extras(words.begin(), end_of_options);
  const auto flag = std::ranges::find_if(
      extras, [](const std::string& extra) { return extra.size() > 1 && extra[0] == '-'; });
  if (flag == extras.end()) {
    if (end_of_options != words.end()) extras.insert(extras.end(), end_of_options + 1, words.end());
    if (extras.empty()) return "";
    const bool prompt = app.get_option_no_throw("PROMPT") != nullptr;
    return "unexpected argument \"" + extras.front() + "\"" +
           (prompt ? "; a prompt of several words stands in quotes" : "");
  }
  const std::string name = flag->substr(0, flag->find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& longer : option->get_lnames())
      known.push_back("--" + longer);
  }
  const std::string here = name_here(name, app.get_name());
  const std::string option_here = here.substr(0, here.find_first_of(" ;"));
  const bool known_here = std::find(known.begin(), known.end(), option_here) != known.end();
  const std::string unknown = "unknown option " + name;
  if (known_here) return unknown + ": here it is " + here;
  if (const auto why = why_not_here(name, app.get_name()); !why.empty())
    return unknown + ": " + why;
  const auto guess = did_you_mean(name, known);
  return unknown + (guess.empty() ? whose_option(app, here.empty() ? name : option_here) : guess);
}

std::string variable_of(const std::string& option) {
  std::string name = "TROUPE_";
  for (const char c : option.substr(std::min(option.find_first_not_of('-'), option.size())))
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

}  // namespace troupe::cli
