#include "client/repl/completion.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "client/cli/options.h"
#include "client/cli/verb.h"

namespace troupe::repl {

namespace {

namespace fs = std::filesystem;

/// Largest number of words; nobody reads through more.
constexpr std::size_t kMost = 10'000;
/// Ending that no file's name has: folders alone are wanted.
constexpr const char* kNoFile = "/";

}  // namespace

std::vector<std::string> file_words(const std::string& typed, const std::string& ending) {
  const auto slash = typed.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : typed.substr(0, slash + 1);
  const std::string begun = typed.substr(folder.size());
  std::vector<std::string> words;
  std::error_code error;
  fs::directory_iterator at(folder.empty() ? "." : folder, error);
  for (; !error && at != fs::directory_iterator() && words.size() < kMost; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begun) || (name.starts_with('.') && begun.empty())) continue;
    std::error_code unknown;
    if (at->is_directory(unknown))
      words.push_back(folder + name + "/");
    else if (name.ends_with(ending))
      words.push_back(folder + name);
  }
  std::sort(words.begin(), words.end());
  return words;
}

namespace {

/// The words of the command that the cursor is in, the last one as far as it goes (maybe empty).
Words words_before(const std::string& before, char quote) {
  // A letter at the cursor keeps the last word open, also where there is none yet.
  constexpr char kCursor = '\x01';
  auto commands = split_commands(before + kCursor + (quote == 0 ? "" : std::string(1, quote)));
  if (commands.empty() || commands.back().empty()) return {};
  Words words = std::move(commands.back());
  if (words.back().empty() || words.back().back() != kCursor) return {};
  words.back().pop_back();
  return words;
}

std::vector<std::string> argument_words(Argument argument, const Words& words,
                                        const ArgumentWords& words_for) {
  const std::string& word = words.back();
  switch (argument) {
    case Argument::latents_file:
      return file_words(word, ".safetensors");
    case Argument::picture_file:
      return file_words(word, ".png");
    case Argument::trace_file:
      return file_words(word, ".json");
    case Argument::output_option:
      return {"-o"};
    case Argument::not_finite:
      return {"nan"};
    case Argument::all:
      return {"all"};
    case Argument::job_or_all: {
      auto known = words_for(Argument::job, {words.begin(), words.end() - 1});
      known.push_back("all");
      return known;
    }
    default:
      return words_for(argument, {words.begin(), words.end() - 1});
  }
}

/// An option of a command.
struct OptionShape {
  std::string name;  // "--prompt"
  cli::ValueKind kind = cli::ValueKind::none;
  std::string ending;              // of a file
  std::vector<std::string> words;  // all words that the value may be
};

std::vector<OptionShape> options_of(const Command& command) {
  std::vector<OptionShape> shapes;
  if (!command.shared) return shapes;
  cli::Options options;
  const auto verb = command.shared(options, cli::Where::console);
  shapes.push_back({"--help", cli::ValueKind::none, "", {}});
  shapes.push_back({"-h", cli::ValueKind::none, "", {}});
  for (const auto& option : options.all())
    for (const std::string& name : option->names())
      shapes.push_back({name, option->kind(), option->file_ending(), option->words()});
  return shapes;
}

/// Returns the possible values of an option, or the options that there are; nothing where the word
/// is neither.
std::optional<std::vector<std::string>> option_words(const Command& command, const Words& words) {
  const auto options = options_of(command);
  const std::string& option = words[words.size() - 2];
  const auto found =
      std::ranges::find_if(options, [&](const auto& one) { return one.name == option; });
  if (found != options.end() && found->kind != cli::ValueKind::none) {
    if (found->kind == cli::ValueKind::file) return file_words(words.back(), found->ending);
    if (found->kind == cli::ValueKind::folder) return file_words(words.back(), kNoFile);
    return found->words;
  }
  if (!words.back().starts_with('-')) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& one : options)
    names.push_back(one.name);
  return names;
}

std::vector<std::string> known_words(const Words& words, const std::vector<Command>& commands,
                                     const ArgumentWords& words_for) {
  std::vector<std::string> known;
  if (words.size() == 1) {
    for (const Command& command : commands)
      known.push_back(command.name);
    return known;
  }
  const auto command =
      std::ranges::find_if(commands, [&](const Command& one) { return one.name == words.front(); });
  if (command == commands.end()) return {};
  if (command->shared)
    if (const auto of_options = option_words(*command, words)) return *of_options;
  const std::size_t position = words.size() - 2;
  if (position >= command->completes.size()) return {};
  return argument_words(command->completes[position], words, words_for);
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

}  // namespace

std::string Completion::to_insert() const {
  if (choices.empty()) return "";
  const std::string& first = choices.front();
  std::size_t common = first.size();
  for (const std::string& choice : choices) {
    std::size_t same = 0;
    while (same < std::min(common, choice.size()) && choice[same] == first[same])
      ++same;
    common = same;
  }
  while (common > word.size() && common < first.size() && continues_character(first[common]))
    --common;
  const std::string text = escaped(first.substr(word.size(), common - word.size()), quote);
  if (choices.size() > 1 || first.ends_with('/')) return text;
  return text + (quote == 0 ? "" : std::string(1, quote)) + " ";
}

Completion complete(const std::string& before, const std::vector<Command>& commands,
                    const ArgumentWords& words_for) {
  Completion completion;
  completion.quote = open_quote(before);
  const Words words = words_before(before, completion.quote);
  if (words.empty()) return completion;
  completion.word = words.back();
  for (auto& word : known_words(words, commands, words_for)) {
    const bool typeable = completion.quote != '\'' || word.find('\'') == std::string::npos;
    if (word.starts_with(completion.word) && typeable)
      completion.choices.push_back(std::move(word));
  }
  std::ranges::sort(completion.choices);
  completion.choices.erase(std::unique(completion.choices.begin(), completion.choices.end()),
                           completion.choices.end());
  return completion;
}

}  // namespace troupe::repl
