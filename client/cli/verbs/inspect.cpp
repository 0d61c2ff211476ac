#include <filesystem>
#include <iostream>

#include "base/counted.h"
#include "client/cli/files.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"
#include "models/image/limits.h"
#include "models/image/png_text.h"
#include "models/spec/weight_index.h"

namespace troupe::cli {
namespace {

class InspectVerb : public Verb {
 public:
  explicit InspectVerb(CLI::App& parent)
      : Verb(parent, "inspect",
             "Print the parameters in a picture, or the tensors in a safetensors file") {
    app_->add_option("FILE", file_, "A .png or .safetensors file");
    set_footer("", {"troupe inspect out.png", "troupe inspect latents.safetensors --json"},
               "commands.md#inspect");
  }

  int run() override {
    if (file_.empty()) throw UsageError("inspect needs a FILE");
    if (std::filesystem::path(file_).extension() == ".safetensors") return inspect_tensors();
    return inspect_picture();
  }

 private:
  int inspect_picture() {
    models::PngText texts;
    models::PngSize size;
    const std::string bytes = read_file(file_, models::kMaxPngBytes);
    try {
      texts = models::read_png_text(bytes);
      size = models::read_png_size(bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error(file_ + ": " + error.what());
    }
    if (json()) {
      nlohmann::json by_keyword = nlohmann::json::object();
      for (const auto& [keyword, text] : texts)
        by_keyword[keyword] = text;
      print_json(
          {{"file", file_}, {"width", size.width}, {"height", size.height}, {"text", by_keyword}});
      return kOk;
    }
    std::cout << file_ << ": PNG, " << size.width << " x " << size.height << "\n";
    if (texts.empty()) std::cout << "no parameters\n";
    for (const auto& [keyword, text] : texts)
      std::cout << printable(keyword + ": " + text) << "\n";
    std::cout << std::flush;
    return kOk;
  }

  int inspect_tensors() {
    const auto index = spec::WeightIndex::read_file(file_);
    if (json()) {
      auto tensors = nlohmann::json::array();
      for (const spec::TensorEntry& tensor : index.tensors()) {
        tensors.push_back({{"name", tensor.name},
                           {"dtype", std::string(spec::dtype_name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"bytes", tensor.bytes()}});
      }
      print_json({{"file", file_},
                  {"bytes", index.bytes()},
                  {"tensors", tensors},
                  {"metadata", index.metadata()}});
      return kOk;
    }
    std::vector<Row> rows;
    for (const spec::TensorEntry& tensor : index.tensors()) {
      rows.push_back({tensor.name, std::string(spec::dtype_name(tensor.dtype)),
                      spec::shape_text(tensor.shape)});
    }
    std::cout << file_ << ": " << counted(rows.size(), "tensor") << ", "
              << bytes_cell(index.bytes()) << "\n"
              << table({"NAME", "TYPE", "SHAPE"}, rows) << std::flush;
    return kOk;
  }

  std::string file_;
};

}  // namespace

std::unique_ptr<Verb> make_inspect(CLI::App& parent) {
  return std::make_unique<InspectVerb>(parent);
}

}  // namespace troupe::cli
