#pragma once
#include <map>
#include <set>
#include <string>

#include "transport/wire/job_field.h"
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

}  // namespace troupe::web
