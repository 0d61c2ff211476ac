#include "models/spec/torch_file.h"

#include "tests/spec/model_folder.h"
#include "tests/spec/torch_bytes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::testing;
using spec::WeightIndex;

namespace {

std::string saved(const std::string& pickle, const std::string& storage = std::string(16, '\0')) {
  return zip_of({{"archive/data.pkl", pickle}, {"archive/data/0", storage}});
}

class TorchFile {
 public:
  explicit TorchFile(const std::string& bytes, const std::string& name = "x.ckpt")
      : path_(scratch_.file(name, bytes)) {}
  WeightIndex read() const { return WeightIndex::read_file(path_); }
  std::string error() const {
    return error_of([&] { read(); });
  }

 private:
  Scratch scratch_;
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("a file of torch.save has its tensors, whatever its name") {
  for (const char* name : {"x.ckpt", "x.bin", "x.pt", "x.safetensors"}) {
    const TorchFile file(saved(pickle_of_tensor()), name);
    const auto index = file.read();
    REQUIRE(index.tensors().size() == 1);
    const auto& entry = index.at("w");
    CHECK(entry.dtype == spec::Dtype::float32);
    CHECK(entry.shape == std::vector<std::int64_t>{2, 2});
    CHECK(entry.bytes() == 16);
    CHECK(entry.stored_as == spec::StoredAs::as_is);
  }
  CHECK(TorchFile(saved(pickle_of_tensor(1, 2))).read().at("w").stored_as ==
        spec::StoredAs::transposed);
}

TEST_CASE("what is no tensor is refused by its name, and nothing is executed") {
  const auto refused = [](const std::string& bytes, const std::string& why) {
    const auto error = TorchFile(bytes).error();
    CAPTURE(error);
    CHECK(error.starts_with("[load_torch] "));
    CHECK(contains(error, why));
    CHECK(error.find('\n') == std::string::npos);
  };
  refused(saved("\x80\x02"
                "cos\nsystem\n" +
                pickled("true") + "\x85R."),
          "calls for \"os.system\"");
  refused(saved("\x80\x04" + pickled("builtins") + pickled("eval") + "\x93."),
          "calls for \"builtins.eval\"");
  refused(saved("\x80\x02i."), "has the operation 'i', which tensors do not need");
  refused(saved("\x80\x02}\x81."), "has the operation 0x81");
  refused(saved("\x80\x02"
                "ctorch\nSize\nK\x01R."),
          "calls what is no function");
  refused(saved("\x80\x02\x85."), "takes a value where there is none");
  refused(saved("\x80\x02h\x07."), "recalls what was not kept");
  refused(saved("\x80\x02X\xff\xff\xff\x7f."), "ends within a value");
  refused(saved("\x80\x02K\x01."), "holds no dictionary of tensors");
  refused(saved("\x80\x09K\x01."), "protocol 9");
  refused(saved(pickle_of_tensor(), "short"), "ends beyond the 5 bytes of its storage");
  refused(saved(pickle_of_tensor(3, 1)), "strides [3, 1], which are not read");
  refused(zip_of({{"archive/data.pkl", pickle_of_tensor()}}), "\"0\", which is missing");
  refused(zip_of({{"other", ""}}), "without torch.save's data.pkl");
  refused(zip_of({{"a/data.pkl", pickle_of_tensor()},
                  {"a/data/0", std::string(16, '\0')},
                  {"a/byteorder", "big"}}),
          "another byte order");
  refused("x", "is no file of torch.save");
  const std::string whole = saved(pickle_of_tensor());
  refused(whole.substr(0, whole.size() - 30), "broken directory");
}

TEST_CASE("what a pickle multiplies by recalling it is bounded") {
  const auto refused = [](const std::string& pickle, const std::string& why) {
    const auto error = TorchFile(saved(pickle)).error();
    CAPTURE(error);
    CHECK(contains(error, why));
  };
  const auto keep = [](int place) { return "q" + std::string(1, static_cast<char>(place)); };
  const auto recall = [](int place) { return "h" + std::string(1, static_cast<char>(place)); };
  // Eight dictionaries, each of which has the one before it forty times.
  std::string nested = "\x80\x02}" + keep(0);
  for (int depth = 1; depth <= 8; ++depth) {
    nested += "}" + keep(depth) + "(";
    for (int i = 0; i < 40; ++i)
      nested += pickled(std::to_string(i)) + recall(depth - 1);
    nested += "u";
  }
  refused(nested + ".", "has more than 2000000 values in its dictionaries");
  const std::string name(600, 'n');
  const std::string tensor =
      pickle_of_tensor().substr(3);  // behind the protocol and its dictionary
  refused("\x80\x02}" + pickled(name) + tensor.substr(pickled("w").size()),
          "has a name of 600 bytes");
  refused("\x80\x02(" + pickled("storage") + "ctorch\nFloatStorage\n" + pickled(name) +
              pickled("cpu") + "K\x04tQ.",
          "names a storage by 600 bytes");
  std::string many =
      "\x80\x02"
      "ctorch\nSize\n(";
  for (int i = 0; i < 17; ++i)
    many += "K\x01";
  refused(many + "tR.", "calls \"torch.Size\" with 17 values");
}

TEST_CASE("folders have such weights where there are no safetensors of diffusers' names") {
  const Scratch folder;
  const auto read = [&] {
    const std::string_view stems[] = {"model"};
    return WeightIndex::read_folder(folder.path, stems);
  };
  CHECK(contains(error_of([&] { read(); }), "no weights"));
  folder.file("any.pt", saved(pickle_of_tensor()));
  CHECK(read().label().filename() == "any.pt");
  const auto safetensors =
      with_prefix(R"({"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})") + "1234";
  folder.file("of-any-name.safetensors", safetensors);
  CHECK(read().contains("v"));
  folder.file("pytorch_model.fp16.bin", saved(pickle_of_tensor()));
  CHECK(read().label().filename() == "pytorch_model.fp16.bin");
  folder.file("shard-1.bin", saved(pickle_of_tensor()));
  folder.file("pytorch_model.bin.index.json", R"({"weight_map":{"w":"shard-1.bin"}})");
  CHECK(read().label().filename() == "pytorch_model.bin.index.json");
  CHECK(read().at("w").bytes() == 16);
  folder.file("pytorch_model.bin", saved(pickle_of_tensor()));
  CHECK(read().label().filename() == "pytorch_model.bin");
  folder.file("model.safetensors", safetensors);
  CHECK(read().label().filename() == "model.safetensors");
}
