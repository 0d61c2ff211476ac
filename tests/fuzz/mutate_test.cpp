// The short pass of the test suite: every target gets its corpus, then inputs mutated from it, the
// same ones in every run. What libFuzzer finds in the long pass (scripts/fuzz) is kept in corpus/.
#include <algorithm>
#include <chrono>
#include <random>

#include "tests/fuzz/target.h"
#include "tests/support/text.h"

#include "tests/support/doctest.h"

namespace troupe::fuzz {
namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t bound) {
  return bound == 0 ? 0 : static_cast<std::size_t>(random() % bound);
}

/// Pieces that parsers stumble over.
std::string troublesome(Random& random) {
  static const std::vector<std::string> all{std::string(4, '\xff'),
                                            std::string(8, '\xff'),
                                            std::string(8, '\0'),
                                            std::string("\x00\x00\x00\x80", 4),
                                            std::string("\xff\xff\xff\x7f", 4),
                                            "null",
                                            "-1",
                                            "1e999",
                                            "18446744073709551616",
                                            "9223372036854775807",
                                            "[[[[[[[[",
                                            "{\"a\":",
                                            "\"\\u0000\"",
                                            "\\ud800",
                                            "\xc0\x80",
                                            "\xed\xa0\x80",
                                            "\xf4\x90\x80\x80",
                                            "../",
                                            "/",
                                            "NaN",
                                            "Infinity",
                                            "true",
                                            "[]",
                                            "{}",
                                            "\"\"",
                                            "\n",
                                            "\r",
                                            " ",
                                            "&#x110000;",
                                            "<",
                                            "%00"};
  return all[below(random, all.size())];
}

std::string mutated(Random& random, std::string bytes, const std::string& other) {
  for (std::size_t changes = 1 + below(random, 4); changes > 0; --changes) {
    const std::size_t at = below(random, bytes.size() + 1);
    const std::size_t length = below(random, std::min<std::size_t>(bytes.size() - at, 32) + 1);
    switch (below(random, 8)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 4:
        bytes.insert(at, troublesome(random));
        break;
      case 5: {
        const std::string piece = troublesome(random);
        bytes.replace(at, std::min(piece.size(), bytes.size() - at), piece);
        break;
      }
      case 6:
        bytes.resize(at);
        break;
      default: {
        const std::size_t from = below(random, other.size() + 1);
        bytes.insert(at, other.substr(from, below(random, 64)));
        break;
      }
    }
  }
  return bytes;
}

std::vector<std::string> corpus_of(const Target& target) {
  std::vector<std::string> corpus = target.seeds();
  const auto folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fuzz/corpus" / target.name;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  for (const auto& file : files)
    corpus.push_back(testing::read_all(file));
  return corpus;
}

}  // namespace

TEST_CASE("bytes from outside are refused or taken, never worse") {
  constexpr int kInputs = 3000;
  constexpr auto kLimit = std::chrono::milliseconds(1500);  // a slow target gets fewer
  for (const Target& target : targets()) {
    const std::string name = target.name;
    CAPTURE(name);
    const auto corpus = corpus_of(target);
    REQUIRE_FALSE(corpus.empty());
    const auto until = std::chrono::steady_clock::now() + kLimit;
    int inputs = 0;
    const auto run = [&](const std::string& bytes) {
      REQUIRE_NOTHROW(target.run(std::string_view(bytes).substr(0, target.max_bytes)));
      ++inputs;
    };
    run("");
    for (const auto& bytes : corpus)
      run(bytes);
    Random random(20261121);
    for (int i = 0; i < kInputs && std::chrono::steady_clock::now() < until; ++i)
      run(mutated(random, corpus[below(random, corpus.size())],
                  corpus[below(random, corpus.size())]));
    MESSAGE(name << ": " << inputs << " inputs");
  }
}

}  // namespace troupe::fuzz
