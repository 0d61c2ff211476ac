#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "transport/wire/job_field.h"
#include "transport/wire/request_fields.h"
#include "troupe/client.h"
#include "web/api_error.h"
#include "web/call_fields.h"

namespace troupe::web {

/// Names by which the client of a call knows the parts of its submission: of each the field that it
/// gave, else the one that the call has for it.
class FieldWords {
 public:
  /// Has our names.
  FieldWords() = default;
  /// `call`: one of Call. `given`: names of the request's fields. `other_names`: further names of
  /// ours, as Fields has them.
  FieldWords(Call call, const std::set<std::string>& given,
             const std::map<std::string, std::string>& other_names);

  /// Returns the name for a part of the submission; "" where the call has no field for it.
  std::string of(wire::JobField field) const { return word_of(field).name; }
  /// Returns a text that calls fields by our names, as in_fields has them, in these words.
  std::string in_words(std::string text) const;
  ApiError in_words(const ApiError& error) const;
  /// Does `work`: ApiErrors that it throws are told in these words.
  template <class Work>
  auto tell(Work&& work) const {
    try {
      return work();
    } catch (const ApiError& error) {
      throw in_words(error);
    }
  }

 private:
  struct Word {
    std::string name;
    std::string before;  // what comes before a text about our field, in place of our name
  };
  Word word_of(wire::JobField field) const;

  std::map<wire::JobField, Word> words_;  // where it is not our name
};

/// Parses a request's body. Throws ApiError for a body that is not JSON, is nested deeper than 64
/// levels or has more than 100,000 values.
nlohmann::json parse_body(const std::string& body);

/// The fields of a request's JSON body, taken one by one. A field that is null counts as left out.
/// Every function throws ApiError naming the field where its value is of the wrong kind or out of
/// bounds. Pure.
class Fields {
 public:
  /// `body` must be an object. `aliases`: other names of fields, by these names, to ours. With
  /// `form` the values came as a form's texts, and numbers are read from text.
  explicit Fields(nlohmann::json body, std::map<std::string, std::string> aliases = {},
                  bool form = false);
  /// Parses the body, then makes its fields. Throws ApiError if the body is not JSON.
  static Fields parse(const std::string& body, std::map<std::string, std::string> aliases = {});

  std::optional<std::string> text(const std::string& name);
  std::optional<std::int64_t> whole(const std::string& name, std::int64_t least, std::int64_t most);
  /// Returns a whole number of up to 64 bits. One with a point is refused: as such it may have been
  /// rounded.
  std::optional<std::uint64_t> natural(const std::string& name);
  std::optional<double> number(const std::string& name, const wire::Bounds& bounds);
  std::optional<bool> flag(const std::string& name);
  std::optional<std::string> choice(const std::string& name, const std::vector<std::string>& words);
  /// A text, or a list of texts.
  std::optional<std::vector<std::string>> texts(const std::string& name);
  /// Returns a list of std::int32_t, std::uint64_t or double.
  template <class T>
  std::optional<std::vector<T>> numbers(const std::string& name, const wire::Bounds& bounds,
                                        bool one_for_all = false);
  /// Returns a field's value of whatever kind; null where the field is left out. Valid for as long
  /// as these fields.
  const nlohmann::json* any(const std::string& name);
  bool has(const std::string& name) const;
  /// Returns how the client of the call names the parts of its submission.
  FieldWords words(Call call) const;
  /// Deals with the call's fields that nobody has taken, by call_fields.def: harmless ones are left
  /// unused, of the others the first whose value does not pass is thrown for, with the remedy.
  void settle(Call call);

  /// Reads every field of transport/wire/request_fields.def that is there, but for the prompts and
  /// what comes with the progress. Without `method`, more than one patch means pipefusion.
  void read_request(ImageRequest& request);
  /// Reads the degrees, by degree_fields.def; `stages`, and "parallel": "auto".
  void read_degrees(Parallelism& degrees);

  /// Throws for the first field that was not taken, with the known field that was meant.
  void refuse_rest() const;

 private:
  /// Takes a field; null where it is left out. `asked` becomes the name under which it was given.
  const nlohmann::json* take(const std::string& name, std::string& asked);
  template <class Type, class Member>
  void read_field(const wire::RequestField& field, Member& member);
  /// A list of files with what goes with each; of one alone also itself.
  template <class File>
  void read_files(const std::string& name, std::vector<File>& files);

  nlohmann::json body_;
  std::map<std::string, std::string> aliases_;
  bool form_;
  std::set<std::string> known_;  // all that were asked for
  std::set<std::string> taken_;
};

/// Returns a description of each field of a request: name, type, default, bounds, choices and help,
/// as they stand in the tables; and the names of samplers.
nlohmann::json options_json();

/// Returns the words of a call's client for a body that gives these fields, some of them by their
/// other names. An empty value of a form counts as not given.
FieldWords words_of(const nlohmann::json& body, Call call,
                    const std::map<std::string, std::string>& aliases, bool form = false);

}  // namespace troupe::web
