#include "client/repl/completion.h"

#include <algorithm>

namespace troupe::repl {
namespace {

/// The words of the command that the cursor is in, the last one as far as it goes (maybe empty).
Words words_before(const std::string& before) {
  // A letter at the cursor keeps the last word open, also where there is none yet.
  constexpr char kCursor = '\x01';
  std::vector<Words> commands;
  try {
    commands = split_commands(before + kCursor);
  } catch (const LineError&) {
    return {};  // inside a quote: nothing to say
  }
  if (commands.empty() || commands.back().empty()) return {};
  Words words = std::move(commands.back());
  if (words.back().empty() || words.back().back() != kCursor) return {};
  words.back().pop_back();
  return words;
}

}  // namespace

std::string Completion::to_insert() const {
  if (choices.empty()) return "";
  std::size_t common = choices.front().size();
  for (const std::string& choice : choices) {
    std::size_t same = 0;
    while (same < std::min(common, choice.size()) && choice[same] == choices.front()[same])
      ++same;
    common = same;
  }
  std::string text = choices.front().substr(word.size(), common - word.size());
  return choices.size() == 1 ? text + " " : text;
}

Completion complete(const std::string& before, const std::vector<Command>& commands,
                    const ArgumentWords& words_for,
                    const std::function<std::vector<std::string>(const std::string&)>& options_of) {
  Completion completion;
  const Words words = words_before(before);
  if (words.empty()) return completion;
  completion.word = words.back();
  std::vector<std::string> known;
  if (words.size() == 1) {
    for (const Command& command : commands)
      known.push_back(command.name);
  } else {
    const auto command = std::find_if(commands.begin(), commands.end(), [&](const Command& one) {
      return one.name == words.front();
    });
    if (command == commands.end()) return completion;
    const std::size_t position = words.size() - 2;
    if (command->has_options && completion.word.starts_with("-")) {
      known = options_of(command->name);
    } else if (position < command->completes.size()) {
      known = words_for(command->completes[position], {words.begin(), words.end() - 1});
    }
  }
  for (const std::string& word : known) {
    if (word.starts_with(completion.word)) completion.choices.push_back(word);
  }
  std::sort(completion.choices.begin(), completion.choices.end());
  completion.choices.erase(std::unique(completion.choices.begin(), completion.choices.end()),
                           completion.choices.end());
  return completion;
}

}  // namespace troupe::repl
