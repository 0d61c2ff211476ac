// The ids of many lines by one of the tokenizers, and the processor time that they take: what
// tokenizer_ids.py compares with transformers.
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "models/text/clip_tokenizer.h"
#include "models/text/qwen_tokenizer.h"

using namespace troupe;

namespace {

std::vector<std::string> read_lines(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error(file + ": cannot be read");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    lines.push_back(nlohmann::json::parse(line).get<std::string>());
  return lines;
}

/// Encodes the lines, writes the ids of each as a line, and prints the seconds of the encoding.
template <class Tokenizer>
int run(const Tokenizer& tokenizer, const std::string& lines_file, const std::string& ids_file) {
  const auto lines = read_lines(lines_file);
  std::vector<std::vector<std::int64_t>> all;
  all.reserve(lines.size());
  const auto start = std::clock();
  for (const auto& line : lines)
    all.push_back(tokenizer.encode(line));
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  std::ofstream out(ids_file);
  for (const auto& ids : all)
    out << nlohmann::json(ids).dump() << '\n';
  if (!out.flush()) throw std::runtime_error(ids_file + ": cannot be written");
  std::cout << seconds << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Ids of lines by one of the tokenizers, and the seconds that they take",
               "tokenizer_ids");
  std::string kind, folder, lines, ids;
  app.add_option("KIND", kind, "clip or qwen")->required()->check(bench::one_of({"clip", "qwen"}));
  app.add_option("FOLDER", folder, "Folder with vocab.json and merges.txt")->required();
  app.add_option("LINES", lines, "File with a JSON string in each line")->required();
  app.add_option("IDS", ids, "File that the ids of each line go into")->required();
  return bench::run_program(app, argc, argv, [&] {
    return kind == "clip" ? run(models::ClipTokenizer::load(folder), lines, ids)
                          : run(models::QwenTokenizer::load(folder), lines, ids);
  });
}
