#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace troupe::cli {

// What an option's value must be. Each says of a wrong one what it is and what is wanted; none
// shows in the help text.

/// A whole number from `least` to `most`.
CLI::Validator whole(std::int64_t least, std::int64_t most);
/// A finite number from `least` to `most`.
CLI::Validator number(double least, double most);
/// A finite number above `least`, up to `most`.
CLI::Validator number_above(double least, double most);
/// A whole number of 64 bits without a sign: CLI11 would take -1 for 2^64 - 1. `random` becomes
/// one.
CLI::Validator seed_check();
/// One of these words.
CLI::Validator one_of(std::vector<std::string> words);
/// Returns `check` with words that `words_of` finds.
CLI::Validator with_words(CLI::Validator check, const std::vector<std::string>& words);
/// Returns the words that an option takes, if it takes words only; else none.
std::vector<std::string> words_of(CLI::Option& option);
/// An IPv4 or IPv6 address in numbers.
CLI::Validator numeric_address();
/// Refuses empty text, as an unset shell variable leaves behind.
CLI::Validator not_empty();

/// Reads a list of values that `check` accepts, and calls `take` with each in turn. Returns what is
/// wrong with the list, "" if nothing is.
std::string read_list(const std::string& text, const CLI::Validator& check,
                      const std::function<void(const std::string&)>& take = nullptr);

/// Adds an option whose value is a list, as 7,7,7; `check` is for each value. An empty place is
/// refused, by its number. If the option is given twice, the list goes on with the second.
template <class T>
CLI::Option* add_list_option(CLI::App& app, const std::string& name, std::vector<T>& list,
                             const std::string& help, CLI::Validator check) {
  const auto take = [&list](const std::string& text) {
    CLI::detail::lexical_cast(text, list.emplace_back());
  };
  return app
      .add_option_function<std::vector<std::string>>(
          name,
          [&list, check, take](const std::vector<std::string>& texts) {
            list.clear();
            for (const auto& text : texts)
              read_list(text, check, take);
          },
          help)
      ->allow_extra_args(false)
      ->check([check](const std::string& text) { return read_list(text, check); });
}

}  // namespace troupe::cli
