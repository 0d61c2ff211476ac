#pragma once
#include <CLI/CLI.hpp>
#include <memory>

namespace troupe::cli {

/// The group of options that --help lists first, where --help is one of it.
inline constexpr const char* kUsualOptions = "Usual options";

/// Formatter of --help: no line is wider than the terminal, or than 80 characters, and arguments
/// that a verb cannot do without are not shown as if they could be left out.
std::shared_ptr<CLI::FormatterBase> help_format();

}  // namespace troupe::cli
