#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
}  // namespace CLI

namespace troupe::cli {

// The options of a command and what is said of wrong ones. CLI11 reads them; its headers are seen
// by the sources of this library alone, since they cost every unit seconds.

/// Thrown when the command line makes no sense: exit code 2.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Condition on an option's value. Says of a wrong one what it is and what is wanted; none shows in
/// the help text.
class Check {
 public:
  using Wrong = std::function<std::string(std::string& text)>;
  /// `wrong` returns what is wrong with a text, "" if nothing is, and may change it; `words` are
  /// all that the value may be, if it is one of words.
  Check(Wrong wrong, std::vector<std::string> words = {})
      : wrong_(std::move(wrong)), words_(std::move(words)) {}

  std::string operator()(std::string text) const { return wrong_(text); }
  const Wrong& wrong() const { return wrong_; }
  const std::vector<std::string>& words() const { return words_; }

 private:
  Wrong wrong_;
  std::vector<std::string> words_;
};

/// A whole number from `least` to `most`.
Check whole(std::int64_t least, std::int64_t most);
/// A finite number from `least` to `most`.
Check number(double least, double most);
/// A finite number above `least`, up to `most`.
Check number_above(double least, double most);
/// A whole number of 64 bits without a sign: CLI11 would take -1 for 2^64 - 1. `random` becomes
/// one.
Check seed_check();
/// One of these words.
Check one_of(std::vector<std::string> words);
/// An IPv4 or IPv6 address in numbers.
Check numeric_address();
/// Refuses empty text, as an unset shell variable leaves behind.
Check not_empty();

/// Reads a list of values that `check` accepts, and calls `take` with each in turn. Returns what is
/// wrong with the list, "" if nothing is.
std::string read_list(const std::string& text, const Check& check,
                      const std::function<void(const std::string&)>& take = nullptr);

/// The group of options that --help lists first, where --help is one of it.
inline constexpr const char* kUsualOptions = "Usual options";

/// Kind of value that stands behind an option, or in an argument's place, for completion. `speaker`
/// is an actor's number or the controller, `place` a host or an actor's number, `command` a verb.
enum class ValueKind { none, text, words, file, folder, job, speaker, place, command };

/// Place that an option has its value from; a later one goes before an earlier one.
enum class Source { built_in, file, environment, command_line };

/// One option; the functions that change it return it, to be called in a row.
class Option {
 public:
  /// `restore` gives the variable the value that it had before anything was read.
  explicit Option(CLI::Option& option, std::function<void()> restore = {})
      : option_(option), restore_(std::move(restore)) {}

  Option* check(const Check& check);
  /// Does as `check`, and takes the text as the check has changed it.
  Option* transform(const Check& check);
  /// Sets what stands for the value in the help text.
  Option* type_name(const std::string& name);
  Option* group(const std::string& heading);
  /// Sets what the value is; without it that is what its name in the help says (DIR, FILE.png),
  /// else text.
  Option* kind(ValueKind kind);
  /// Shows the value that the variable has now as the default.
  Option* capture_default_str();
  Option* default_str(const std::string& text);
  /// Sets the environment variable that stands for the option where that is not TROUPE_NAME.
  Option* envname(const std::string& name);
  Option* allow_extra_args(bool allowed);
  Option* required();
  /// Sets whether the user's defaults may set it.
  Option* configurable(bool may);
  /// Sets how the value that holds without the option is restored, of an option that hands its
  /// value over.
  Option* restored_by(std::function<void()> restore);
  /// Sets the values as if they were the option's own default: it does not count as given. `place`
  /// is the variable, or the file with the line. Throws UsageError.
  void set_default(const std::vector<std::string>& values, Source source, const std::string& place);
  /// Takes such a default back: the built-in one holds again.
  void leave_default_out();

  Source source() const;
  /// Returns the place of the default that was set; "" if none was.
  const std::string& place() const { return place_; }

  std::size_t count() const;
  /// Returns all names with their dashes, the long ones first; none of an argument.
  std::vector<std::string> names() const;
  /// Returns what stands for the value in the help text; "" of a flag.
  std::string value_name() const;
  ValueKind kind() const;
  /// Returns the ending of a file's name: ".png"; "" = any.
  std::string file_ending() const;
  /// Returns the words that the option takes, if it takes words only; else none.
  const std::vector<std::string>& words() const { return words_; }
  bool is_configurable() const;
  /// Returns the environment variable that stands for the option.
  std::string environment() const;
  /// Names an unusual variable in the help.
  void show_environment() const;
  CLI::Option& cli() const { return option_; }

 private:
  CLI::Option& option_;
  std::function<void()> restore_;
  ValueKind kind_ = ValueKind::none;  // none = as the value's name says
  std::vector<std::string> words_;
  std::string environment_;  // "" = TROUPE_NAME
  Source source_ = Source::built_in;
  std::string place_;
  std::string built_in_default_;  // in the help, while another is set
};

/// The options of a command, which may be a part of another.
class Options {
 public:
  explicit Options(const std::string& description = "", const std::string& name = "");
  ~Options();
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  /// Adds a command. The reference holds as long as this lives.
  Options& add_command(const std::string& name, const std::string& description);
  /// Makes this a program whose --version prints `version`.
  void set_version(const std::string& version);
  void set_footer(const std::string& text);
  /// Lists --help among the usual options.
  void usual_help();
  /// Lets the user's defaults alone: a command that must work whatever these are.
  void take_no_defaults() { takes_defaults_ = false; }
  bool takes_defaults() const { return takes_defaults_; }
  /// Names an option that this has not, though others would look for it, and says why not.
  void refuse(const std::string& name, const std::string& why) { refused_[name] = why; }
  /// Names options of which one may contradict another: a default of one gives way to another that
  /// comes from where more is said.
  void add_rivals(std::vector<std::string> names);
  /// Returns whether a rival of the option comes from a place that goes before the option's.
  bool has_stronger_rival(const Option& option) const;

  /// Adds an option whose value goes to `value`: a number, a text, a list of them, or an optional
  /// one. options.cpp says of which types.
  template <class T>
  Option* add_option(const std::string& name, T& value, const std::string& help);
  /// Adds an option that hands its value over: a double, an int64, a text or a list of texts.
  template <class T>
  Option* add_option_function(const std::string& name, std::function<void(const T&)> take,
                              const std::string& help);
  Option* add_flag(const std::string& name, bool& value, const std::string& help);
  /// Adds an option whose value is a list, as 7,7,7; `check` is for each value. An empty place is
  /// refused, by its number. If the option is given twice, the list goes on with the second.
  template <class T>
  Option* add_list_option(const std::string& name, std::vector<T>& list, const std::string& help,
                          const Check& check);

  /// Returns an option or argument by its name, which must be there.
  Option* get_option(const std::string& name) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  /// Returns all options and arguments but --help and --version, in the order of the help.
  const std::vector<std::unique_ptr<Option>>& all() const { return all_; }
  /// Returns how often an option was given on the command line.
  std::size_t count(const std::string& name) const;

  enum class Parsed { yes, help, version };
  /// Parses a program's words without its name, or a main function's. Words that nothing takes
  /// remain. What follows -- is no option, and -o=X is -o X. Throws UsageError.
  Parsed parse(std::vector<std::string> words);
  Parsed parse(int argc, const char* const* argv);
  /// Returns whether the command stood on the command line that was parsed.
  bool parsed() const;
  /// Returns the words that nothing has taken, -- among them if it was one.
  std::vector<std::string> remaining() const;
  /// Returns the complaint about words that nothing has taken: unexpected_text, or why one is
  /// refused.
  std::string complaint(const std::vector<std::string>& words) const;

  std::string name() const;
  std::string help() const;
  const std::vector<std::unique_ptr<Options>>& commands() const { return commands_; }
  Options* parent() const { return parent_; }
  CLI::App& cli() const { return *app_; }

 private:
  Options(Options& parent, CLI::App& app);
  Option* added(CLI::Option& option, std::function<void()> restore = {});
  const Option* find(const std::string& name) const;
  std::vector<std::string> with_values_apart(const std::vector<std::string>& words) const;

  std::unique_ptr<CLI::App> own_;  // null of a command of another
  CLI::App* app_;
  Options* parent_ = nullptr;
  std::vector<std::unique_ptr<Option>> all_;
  std::vector<std::unique_ptr<Options>> commands_;
  std::vector<std::vector<std::string>> rivals_;
  std::map<std::string, std::string> refused_;  // the reasons, by name
  bool takes_defaults_ = true;
};

/// Returns the environment variable that sets an option's default: TROUPE_STEPS for --steps.
std::string variable_of(const std::string& option);

/// Formatter of --help: no line is wider than the terminal, or than 80 characters, and arguments
/// that a verb cannot do without are not shown as if they could be left out.
std::shared_ptr<CLI::FormatterBase> help_format();

/// Returns an error's text for people: on one line, and without the tags of the rooms that it comes
/// from.
std::string one_line(std::string text);

/// Pairs of a room's tag and the option that says what the room works with.
using RoomOptions = std::vector<std::pair<std::string, std::string>>;
/// Returns a room's error under the room's option: "[keys] x: is no folder" becomes "--keys x: is
/// no folder". The words of other rooms stay as they are.
std::string by_option(const std::string& what, const RoomOptions& options);

/// Returns the option parser's complaint in words that say what is wrong with the command line.
std::string parse_error_text(const std::string& what);
/// Returns the complaint about words that `app` does not know, "" where there is nothing but the --
/// that ends the options.
std::string unexpected_text(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace troupe::cli
