#include "client/cli/shell_completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "client/cli/options.h"

namespace troupe::cli {
namespace {

struct CompletedOption {
  std::vector<std::string> names;  // with dashes; none of an argument
  ValueKind kind = ValueKind::none;
  std::vector<std::string> words;
  std::string ending;  // of a file
  std::string type;
  std::string summary;
  bool repeated = false;
};

/// The first sentence, short enough for a list of choices.
std::string summary_of(const std::string& text) {
  constexpr std::size_t kLongest = 70;
  std::string line = text.substr(0, text.find_first_of(";:("));
  if (line.size() > kLongest) line = line.substr(0, line.rfind(' ', kLongest));
  line.erase(line.find_last_not_of(" .,") + 1);
  return line;
}

std::vector<CompletedOption> options_of_verb(const Options& verb, bool positional) {
  std::vector<CompletedOption> options;
  if (!positional)
    options.push_back({{"--help", "-h"}, ValueKind::none, {}, "", "", "Print this help", false});
  for (const auto& option : verb.all()) {
    if (option->cli().get_positional() != positional) continue;
    auto words = option->words();
    if (option->kind() == ValueKind::command)
      for (const auto& command : verb.parent()->commands())
        words.push_back(command->name());
    options.push_back({option->names(), option->kind(), words, option->file_ending(),
                       option->value_name(), summary_of(option->cli().get_description()),
                       option->cli().get_expected_max() > 1});
  }
  return options;
}

std::string joined_by(const std::vector<std::string>& words, const char* between) {
  return CLI::detail::join(words, between);
}

/// Returns the text as it stands inside '…' of a shell; `quote` replaces each quote.
std::string quoted(const std::string& text, const char* quote) {
  std::string out;
  for (const char c : text)
    out += c == '\'' ? std::string(quote) : std::string(1, c);
  return out;
}

/// Command that lists what the cluster knows of that kind.
std::string known(ValueKind kind) {
  const bool jobs = kind == ValueKind::job;
  const std::string hosts =
      kind == ValueKind::place ? R"x( -e 's/^ *"host": "\(.*\)",*$/\1/p')x" : "";
  return std::string(kind == ValueKind::speaker ? "echo controller; " : "") + "troupe " +
         (jobs ? "jobs" : "status") +
         R"x( --json 2>/dev/null | sed -n -e 's/^ *"id": \([0-9]*\),*$/\1/p')x" + hosts +
         (hosts.empty() ? "" : " | sort -u");
}

std::string bash_value(const CompletedOption& option) {
  switch (option.kind) {
    case ValueKind::words:
    case ValueKind::command:
      return "COMPREPLY=($(compgen -W '" + joined_by(option.words, " ") + "' -- \"$cur\"))";
    case ValueKind::folder:
      return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\"))";
    case ValueKind::file:
      return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$cur\") $(compgen -f -X '!*" +
             option.ending + "' -- \"$cur\"))";
    case ValueKind::job:
    case ValueKind::speaker:
    case ValueKind::place:
      return fmt::format("COMPREPLY=($(compgen -W \"$({})\" -- \"$cur\"))", known(option.kind));
    default:
      return ":";
  }
}

std::string bash_script(const Options& troupe) {
  std::vector<std::string> names;
  std::string cases;
  for (const auto& verb : troupe.commands()) {
    names.push_back(verb->name());
    std::vector<std::string> words;
    std::string values;
    for (const auto& option : options_of_verb(*verb, false)) {
      words.insert(words.end(), option.names.begin(), option.names.end());
      if (option.kind != ValueKind::none)
        values += fmt::format("        {}) {}; return ;;\n", joined_by(option.names, "|"),
                              bash_value(option));
    }
    std::string argument;
    for (const auto& option : options_of_verb(*verb, true))
      if (option.kind != ValueKind::text && argument.empty())
        argument = "      [[ $cur != -* || $ended ]] && { " + bash_value(option) + "; return; }\n";
    cases += fmt::format("    {})\n      case $prev in\n{}      esac\n{}      words='{}' ;;\n",
                         verb->name(), values, argument, joined_by(words, " "));
  }
  const auto all = joined_by(names, " ");
  return "# Completes `troupe` in bash. Made by `troupe completion bash`.\n"
         "_troupe() {\n"
         "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= words= "
         "ended= i\n"
         "  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then "
         "prev=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    if [[ ${COMP_WORDS[i]} == -- ]]; then ended=1; prev=; break; fi\n"
         "    if [[ -z $verb && ${COMP_WORDS[i]} != -* && ${COMP_WORDS[i]} != help ]]; then "
         "verb=${COMP_WORDS[i]}; fi\n"
         "  done\n"
         "  COMPREPLY=()\n"
         "  case $verb in\n"
         "    '') words='" +
         all + " help --help --version' ;;\n" + cases +
         "  esac\n"
         "  [[ $ended ]] || COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
         "}\n"
         "complete -F _troupe troupe\n";
}

std::string zsh_value(const CompletedOption& option) {
  switch (option.kind) {
    case ValueKind::words:
    case ValueKind::command:
      return "(" + joined_by(option.words, " ") + ")";
    case ValueKind::folder:
      return "_files -/";
    case ValueKind::file:
      return option.ending.empty() ? "_files" : "_files -g \"*" + option.ending + "\"";
    case ValueKind::job:
      return "_troupe_jobs";
    case ValueKind::speaker:
      return "_troupe_speakers";
    case ValueKind::place:
      return "_troupe_places";
    default:
      return " ";
  }
}

/// Returns the text as it stands inside '…[…]' of _arguments.
std::string zsh_text(const std::string& text) {
  std::string out;
  for (const char c : quoted(text, "'\\''")) {
    if (c == '[' || c == ']' || c == ':') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_script(const Options& troupe) {
  std::string verbs, cases;
  for (const auto& verb : troupe.commands()) {
    verbs += fmt::format("    '{}:{}'\n", verb->name(),
                         quoted(summary_of(verb->cli().get_description()), "'\\''"));
    cases += fmt::format("    {})\n      _arguments", verb->name());
    for (const auto& option : options_of_verb(*verb, false))
      for (const std::string& name : option.names) {
        cases += fmt::format(" \\\n        '{}{}[{}]", option.repeated ? "*" : "", name,
                             zsh_text(option.summary));
        if (option.kind != ValueKind::none)
          cases += fmt::format(":{}:{}", zsh_text(option.type), zsh_value(option));
        cases += "'";
      }
    for (const auto& option : options_of_verb(*verb, true))
      cases += fmt::format(" \\\n        '{}:{}:{}'", option.repeated ? "*" : "",
                           zsh_text(option.type), zsh_value(option));
    cases += " ;;\n";
  }
  return "#compdef troupe\n"
         "# Completes `troupe` in zsh. Made by `troupe completion zsh`.\n"
         "_troupe_jobs() {\n  compadd -- $(" +
         known(ValueKind::job) + ")\n}\n_troupe_speakers() {\n  compadd -- $(" +
         known(ValueKind::speaker) + ")\n}\n_troupe_places() {\n  compadd -- $(" +
         known(ValueKind::place) +
         ")\n}\n"
         "_troupe() {\n"
         "  local -a verbs\n"
         "  verbs=(\n" +
         verbs +
         "    'help:Tell the options of a command'\n  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command verbs\n"
         "    return\n"
         "  fi\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $words[1] in\n"
         "    help) _describe command verbs ;;\n" +
         cases +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _troupe ]]; then _troupe \"$@\"; else compdef _troupe troupe; "
         "fi\n";
}

std::string fish_value(const CompletedOption& option) {
  switch (option.kind) {
    case ValueKind::none:
      return "";
    case ValueKind::words:
    case ValueKind::command:
      return " -x -a '" + joined_by(option.words, " ") + "'";
    case ValueKind::folder:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::file:
      return option.ending.empty() ? " -r -F"
                                   : " -r -f -a '(__fish_complete_suffix " + option.ending + ")'";
    case ValueKind::job:
    case ValueKind::speaker:
    case ValueKind::place:
      return fmt::format(" -x -a '({})'", quoted(known(option.kind), "\\'"));
    case ValueKind::text:
      return " -x";
  }
  return "";
}

std::string fish_script(const Options& troupe) {
  std::string out =
      "# Completes `troupe` in fish. Made by `troupe completion fish`.\n"
      "complete -c troupe -f\n"
      "complete -c troupe -n __fish_use_subcommand -l help -l version\n"
      "complete -c troupe -n __fish_use_subcommand -a help -d 'Tell the options of a command'\n";
  for (const auto& verb : troupe.commands()) {
    const std::string name = verb->name();
    out += fmt::format("complete -c troupe -n '__fish_seen_subcommand_from help' -a {}\n", name);
    out += fmt::format("complete -c troupe -n __fish_use_subcommand -a {} -d '{}'\n", name,
                       quoted(summary_of(verb->cli().get_description()), "\\'"));
    const std::string within =
        fmt::format("complete -c troupe -n '__fish_seen_subcommand_from {}'", name);
    for (const auto& option : options_of_verb(*verb, false)) {
      out += within;
      for (const std::string& spelled : option.names)
        out += spelled.starts_with("--") ? " -l " + spelled.substr(2) : " -s " + spelled.substr(1);
      out += fish_value(option) + " -d '" + quoted(option.summary, "\\'") + "'\n";
    }
    for (const auto& option : options_of_verb(*verb, true))
      if (option.kind != ValueKind::text) out += within + fish_value(option) + "\n";
  }
  return out;
}

/// One beyond ASCII, of well-formed UTF-8, as groff takes it. `at` ends at its last byte.
std::string roff_letter(const std::string& text, std::size_t& at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  unsigned code = first & (0x3fu >> more);
  for (int i = 0; i < more && at + 1 < text.size(); ++i)
    code = code << 6 | (static_cast<unsigned char>(text[++at]) & 0x3fu);
  return fmt::format("\\[u{:04X}]", code);
}

/// Text of a manual page: no letter of it is taken for a request.
std::string roff(const std::string& text) {
  std::string out;
  bool begins = true;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (begins && (c == '.' || c == '\'')) out += "\\&";
    if (static_cast<unsigned char>(c) >= 0xc0)
      out += roff_letter(text, at);
    else if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
    begins = c == '\n';
  }
  return out;
}

std::string roff_head(const std::string& name, const std::string& summary) {
  return fmt::format(".TH \"{}\" 1 \"\" \"troupe " TROUPE_VERSION
                     "\" \"Troupe\"\n.SH NAME\n{} \\- {}\n",
                     name, roff(name), roff(summary));
}

std::string roff_option(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_snames())
    names += (names.empty() ? "" : ", ") + ("\\fB\\-" + roff(name) + "\\fR");
  for (const std::string& name : option.get_lnames())
    names += (names.empty() ? "" : ", ") + ("\\fB\\-\\-" + roff(name) + "\\fR");
  if (option.get_positional()) names = "\\fI" + roff(option.get_name()) + "\\fR";
  const bool takes = option.get_items_expected_max() > 0 && !option.get_positional();
  if (takes) names += " \\fI" + roff(option.get_type_name()) + "\\fR";
  std::string text = ".TP\n" + names + "\n" + roff(option.get_description()) + ".\n";
  if (takes && !option.get_default_str().empty())
    text += "Default: " + roff(option.get_default_str()) + ".\n";
  if (!option.get_envname().empty()) text += "Also from " + roff(option.get_envname()) + ".\n";
  return text;
}

/// Paragraphs; lines that are indented, as examples, stand as they are.
std::string roff_paragraphs(const std::string& text) {
  std::string out;
  bool plain = false;  // inside lines that stand as they are
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool indented = line.starts_with("  ");
    if (indented != plain) out += indented ? ".PP\n.nf\n.RS 2\n" : ".RE\n.fi\n";
    plain = indented;
    out += line.empty() ? ".PP\n" : roff(indented ? line.substr(2) : line) + "\n";
  }
  return out + (plain ? ".RE\n.fi\n" : "");
}

}  // namespace

std::string completion_script(const Options& troupe, Shell shell) {
  switch (shell) {
    case Shell::bash:
      return bash_script(troupe);
    case Shell::zsh:
      return zsh_script(troupe);
    case Shell::fish:
      return fish_script(troupe);
  }
  return "";
}

std::string manual_page(const Options& troupe) {
  std::string page = roff_head("troupe", "diffusion transformers on a cluster of actors");
  page += ".SH SYNOPSIS\n\\fBtroupe\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.SH COMMANDS\n";
  for (const auto& verb : troupe.commands())
    page += ".TP\n\\fBtroupe\\-" + roff(verb->name()) + "\\fR(1)\n" +
            roff(verb->cli().get_description()) + "\n";
  return page + ".SH NOTES\n" + roff_paragraphs(troupe.cli().get_footer());
}

std::string manual_page(const Options& troupe, const Options& verb) {
  const std::string name = troupe.name() + "-" + verb.name();
  std::string page = roff_head(name, verb.cli().get_description());
  page += ".SH SYNOPSIS\n\\fBtroupe " + roff(verb.name()) + "\\fR [\\fIOPTIONS\\fR]";
  for (const CLI::Option* option : verb.cli().get_options())
    if (option->get_positional()) page += " [\\fI" + roff(option->get_name()) + "\\fR]";
  page += "\n";
  std::string arguments;
  for (const CLI::Option* option : verb.cli().get_options())
    if (option->get_positional()) arguments += roff_option(*option);
  if (!arguments.empty()) page += ".SH ARGUMENTS\n" + arguments;
  for (const std::string& group : verb.cli().get_groups()) {
    std::string options;
    for (const CLI::Option* option : verb.cli().get_options())
      if (option->nonpositional() && option->get_group() == group) options += roff_option(*option);
    if (options.empty()) continue;
    std::string heading = group == "Options" ? "OPTIONS" : group.substr(0, group.find(" ("));
    std::ranges::transform(heading, heading.begin(),
                           [](unsigned char c) { return std::toupper(c); });
    page += ".SH " + roff(heading) + "\n" + options;
  }
  page += ".SH NOTES\n" + roff_paragraphs(verb.cli().get_footer());
  return page + ".SH ENVIRONMENT\nAn option's default can be set in a variable, as " +
         roff(variable_of("--threads-per-actor")) +
         " for \\-\\-threads\\-per\\-actor, or in ~/.config/troupe/config.toml.\n"
         ".SH SEE ALSO\n\\fBtroupe\\fR(1)\n";
}

}  // namespace troupe::cli
