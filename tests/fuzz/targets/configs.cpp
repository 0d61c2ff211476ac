// Every JSON file of every fixture's model folder in turn, replaced by the input: its first byte
// says which one.
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"
#include "tests/fuzz/targets/all.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

#include <algorithm>

namespace troupe::fuzz {
namespace {

namespace fs = std::filesystem;

struct Place {
  fs::path folder;  // a copy whose big files are links
  fs::path file;
  std::string contents;
};

struct Places {
  Places() {
    std::vector<fs::path> models;
    for (const auto& entry : fs::directory_iterator(fixtures())) {
      if (fs::exists(entry.path() / "model_index.json")) models.push_back(entry.path());
    }
    std::ranges::sort(models);
    for (const auto& model : models)
      copy(model);
  }

  void copy(const fs::path& model) {
    const fs::path folder = scratch.path / model.filename();
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(model)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    for (const auto& from : files) {
      const fs::path to = folder / from.lexically_relative(model);
      fs::create_directories(to.parent_path());
      const bool config = from.extension() == ".json" && fs::file_size(from) < 20'000;
      if (!config) {
        fs::create_symlink(from, to);
        continue;
      }
      fs::copy_file(from, to);
      places.push_back({folder, to, testing::read_all(from)});
    }
  }

  testing::Scratch scratch;
  std::vector<Place> places;
};

Places& all() {
  static Places places;
  return places;
}

void write(const fs::path& file, std::string_view bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

void run_configs(std::string_view bytes) {
  if (bytes.empty()) return;
  const auto& places = all().places;
  const Place& place = places[static_cast<unsigned char>(bytes[0]) % places.size()];
  write(place.file, bytes.substr(1));
  refusable([&] {
    const auto model = spec::read_model_spec(place.folder);
    if (place.file.filename() != "scheduler_config.json") return;
    for (const auto& name : spec::sampler_names())
      refusable([&] { spec::scheduler_config_for(model.scheduler, name); });
    spec::scheduler_config_for(model.scheduler, "");
  });
  write(place.file, place.contents);
}

std::vector<std::string> seeds_configs() {
  std::vector<std::string> seeds;
  const auto& places = all().places;
  for (std::size_t i = 0; i < places.size() && i < 256; ++i)
    seeds.push_back(std::string(1, static_cast<char>(i)) + places[i].contents);
  return seeds;
}

}  // namespace troupe::fuzz
