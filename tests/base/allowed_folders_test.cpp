#include "base/allowed_folders.h"

#include <fstream>

#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

namespace troupe {
namespace fs = std::filesystem;
namespace {

/// models/{a,b/c}, secret/, and links between them.
struct Tree {
  Tree() {
    fs::create_directories(root / "models" / "b" / "c");
    fs::create_directories(root / "models" / "a");
    fs::create_directories(root / "models-too");
    fs::create_directories(root / "secret");
    fs::create_directory_symlink(root / "secret", root / "models" / "out");
    fs::create_directory_symlink(root / "models" / "a", root / "in");
    fs::create_directory_symlink("nowhere", root / "models" / "dangling");
    std::ofstream(root / "file") << "x";
  }
  std::string at(const std::string& path) const { return (root / path).string(); }
  testing::Scratch folder;
  const fs::path& root = folder.path;
};

}  // namespace

TEST_CASE("without a list any folder may be named, as it is") {
  CHECK(AllowedFolders().resolve("/anywhere/../at all") == "/anywhere/../at all");
}

TEST_CASE("only what lies in an allowed folder, wherever the name leads") {
  const Tree tree;
  const AllowedFolders allowed({tree.at("models")});
  CHECK(allowed.resolve(tree.at("models")) == tree.at("models"));
  CHECK(allowed.resolve(tree.at("models/")).has_value());
  CHECK(allowed.resolve(tree.at("models/a")) == tree.at("models/a"));
  CHECK(allowed.resolve(tree.at("models/b/../b/./c")) == tree.at("models/b/c"));
  CHECK(allowed.resolve(tree.at("models/not-there")) == tree.at("models/not-there"));
  // A link from outside into it leads inside; one from inside to the outside does not.
  CHECK(allowed.resolve(tree.at("in")) == tree.at("models/a"));
  CHECK_FALSE(allowed.resolve(tree.at("models/out")));
  CHECK_FALSE(allowed.resolve(tree.at("models/out/deeper")));
  CHECK_FALSE(allowed.resolve(tree.at("models/a/../../secret")));
  CHECK_FALSE(allowed.resolve(tree.at("models/out/../models/a/../../secret")));
  CHECK_FALSE(allowed.resolve(tree.at("models-too")));
  CHECK_FALSE(allowed.resolve(tree.at("secret")));
  CHECK_FALSE(allowed.resolve("/"));
  CHECK_FALSE(allowed.resolve(""));
  CHECK_FALSE(allowed.resolve("models/a"));
  CHECK_FALSE(allowed.resolve("/etc/passwd"));
  CHECK_FALSE(allowed.resolve(tree.at("models/a") + std::string("\0/../../secret", 14)));
}

TEST_CASE("a link in an allowed folder may not lead out of what is allowed, at any depth") {
  const Tree tree;
  fs::create_directories(tree.root / "models" / "m" / "vae");
  const auto link = tree.root / "models" / "m" / "vae" / "w.safetensors";
  const auto out = [&](const std::vector<std::string>& allowed) {
    return AllowedFolders(allowed).refusal_of_links(tree.at("models/m"));
  };
  CHECK_FALSE(out({tree.at("models")}));
  fs::create_symlink("../../a", link);
  CHECK_FALSE(out({tree.at("models")}));
  fs::remove(link);
  fs::create_symlink(tree.root / "file", link);
  CHECK(out({tree.at("models")})
            .value_or("")
            .starts_with("[model] " + link.string() + ": is a link"));
  CHECK_FALSE(out({tree.at("models/m")}));  // its owner has named it
  CHECK_FALSE(out({tree.at("models"), tree.root.string()}));
  CHECK_FALSE(AllowedFolders().refusal_of_links(tree.at("models/m")));
  fs::remove(link);
  const auto part = tree.root / "models" / "m" / "unet";
  fs::create_directory_symlink(tree.root / "secret", part);
  CHECK(out({tree.at("models")})
            .value_or("")
            .starts_with("[model] " + part.string() + ": is a link"));
}

TEST_CASE("an empty list allows nothing, several allow each") {
  const Tree tree;
  CHECK_FALSE(AllowedFolders(std::vector<std::string>{}).resolve(tree.at("models")));
  const AllowedFolders two({tree.at("models/a"), tree.at("in"), tree.at("models-too")});
  CHECK(two.resolve(tree.at("models-too")).has_value());
  CHECK(two.resolve(tree.at("models/a")).has_value());
  CHECK_FALSE(two.resolve(tree.at("models/b")));
}

TEST_CASE("what cannot be allowed is named at the start") {
  const Tree tree;
  CHECK_THROWS_WITH_AS(AllowedFolders({tree.at("no")}), doctest::Contains("/no: cannot be allowed"),
                       std::runtime_error);
  CHECK_THROWS_WITH_AS(AllowedFolders({tree.at("file")}), doctest::Contains("not a folder"),
                       std::runtime_error);
}

}  // namespace troupe
