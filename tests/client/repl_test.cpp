#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/repl/call_arguments.h"
#include "client/repl/command.h"
#include "client/repl/completion.h"
#include "client/repl/options.h"
#include "client/repl/slice_text.h"
#include "client/repl/words.h"
#include "tests/support/doctest.h"

namespace troupe::repl {
namespace {

using List = std::vector<std::string>;
using Commands = std::vector<Words>;

List complete_line(const std::string& before) {
  const auto words_for = [](Argument argument, const Words& before) {
    if (argument == Argument::job) return List{"1", "12", "3"};
    if (argument == Argument::actor) return List{"0", "1"};
    if (argument == Argument::user_actor) return List{"\"two words\"", "visits"};
    if (argument == Argument::method && before == Words{"call", "two words"}) return List{"add"};
    if (argument == Argument::method && before == Words{"call", "visits"}) return List{"value"};
    return List{};
  };
  return complete(before, all_commands(), words_for, option_names).choices;
}

std::string inserted(const std::string& before) {
  return complete(
             before, all_commands(),
             [](Argument, const Words&) {
               return List{"3", "31"};
             },
             option_names)
      .to_insert();
}

std::vector<SliceRange> slice_of(const std::string& text) {
  return parse_slice(text);
}

}  // namespace

TEST_CASE("lines become commands and words") {
  CHECK(split_commands("") == Commands{});
  CHECK(split_commands(" ;; \n ;") == Commands{});
  CHECK(split_commands("jobs; graph 3 ;\tactors\nnodes") ==
        Commands{{"jobs"}, {"graph", "3"}, {"actors"}, {"nodes"}});
  CHECK(split_commands("submit --prompt \"a; b\" 'c \"d\\' e\\ f \\; \"\"") ==
        Commands{{"submit", "--prompt", "a; b", "c \"d\\", "e f", ";", ""}});
  CHECK(split_commands("jobs # all; of them\nactors a#b") == Commands{{"jobs"}, {"actors", "a#b"}});
  CHECK(split_commands("slice 0 3 latents [0, 1:2, :]") ==
        Commands{{"slice", "0", "3", "latents", "[0,1:2,:]"}});
  CHECK(split_commands("say \"two\nlines\"") == Commands{{"say", "two\nlines"}});
  CHECK(split_commands("a]b [c") == Commands{{"a]b", "[c"}});
  CHECK_THROWS_AS(split_commands("say \"open"), LineError);
  CHECK_THROWS_AS(split_commands("say 'open"), LineError);
  CHECK(is_open("say \"open"));
  CHECK_FALSE(is_open("say \"closed\""));
  CHECK_FALSE(is_open("say it's' fine # \" here"));
}

TEST_CASE("a quoted word comes back as it was") {
  for (const std::string word : {"plain", "", "two words", "a\"b\\c", "it's", "#x", "[0, 1]", ";"})
    CHECK(split_commands(quoted(word)) == Commands{{word}});
}

TEST_CASE("arguments of a call") {
  CHECK(call_arguments({}) == "[]");
  CHECK(call_arguments({"5", "-1.5", "true", "null", "[1,2]", "{\"a\":1}"}) ==
        "[5,-1.5,true,null,[1,2],{\"a\":1}]");
  CHECK(call_arguments({"two words", "\"5\"", "", "a\"b"}) == R"(["two words","5","","a\"b"])");
}

TEST_CASE("slices") {
  CHECK(slice_of("[]").empty());
  CHECK(slice_of("").empty());
  const auto ranges = slice_of("[0,2:4,:,-1,3:]");
  REQUIRE(ranges.size() == 5);
  CHECK(ranges[0] == SliceRange{.begin = 0, .end = 0, .whole = false, .single = true});
  CHECK(ranges[1] == SliceRange{.begin = 2, .end = 4, .whole = false, .single = false});
  CHECK(ranges[2] == SliceRange{});
  CHECK(ranges[3].begin == -1);
  CHECK(ranges[4] == SliceRange{.begin = 3, .end = 0, .whole = false, .single = false});
  CHECK(slice_of("0, 1 : 2") == slice_of("[0,1:2]"));
  for (const char* wrong :
       {"[0", "0]", "[a]", "[0,]", "[1:2:3]", "[:0]", "[0,,1]", "[99999999999999999999]"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(slice_of(wrong), std::invalid_argument);
  }
}

TEST_CASE("values are shown as nested brackets") {
  CHECK(values_text({"float32", {}, {1.5}}) == "1.5");
  CHECK(values_text({"float32", {3}, {1, 2, 3}}) == "[1, 2, 3]");
  CHECK(values_text({"float32", {2, 2}, {1, 2, 3, 4}}) == "[[1, 2],\n [3, 4]]");
  CHECK(values_text({"float32", {1, 2, 1}, {1, -2e-9}}) == "[[[1],\n  [-2e-09]]]");
  CHECK(values_text({"float32", {0}, {}}) == "[]");
  CHECK(values_text({"float32", {2}, {1}}) == "[1, ?]");  // a controller that says too little
  CHECK(shape_text({}) == "[]");
  CHECK(shape_text({2, 4}) == "[2, 4]");
}

TEST_CASE("completion of commands, ids and options") {
  CHECK(complete_line("gr") == List{"graph", "groups"});
  CHECK(complete_line("jobs; act") == List{"actors"});
  CHECK(complete_line("").size() == all_commands().size());
  CHECK(complete_line("graph 1") == List{"1", "12"});
  CHECK(complete_line("graph ") == List{"1", "12", "3"});
  CHECK(complete_line("tensors 1 ") == List{"1", "12", "3"});
  CHECK(complete_line("tensors ") == List{"0", "1"});
  CHECK(complete_line("graph 1 ").empty());
  CHECK(complete_line("nonsense ").empty());
  CHECK(complete_line("submit --prompt \"gr").empty());
  CHECK(complete_line("submit --warm") == List{"--warmup"});
  CHECK(complete_line("follow --sav") == List{"--save-latents"});
  // A method is one of the actor's that is called.
  CHECK(complete_line("call ") == List{"\"two words\"", "visits"});
  CHECK(complete_line("call visits ") == List{"value"});
  CHECK(complete_line("jobs; call \"two words\" a") == List{"add"});
  CHECK(complete_line("call nobody ").empty());
  CHECK(inserted("grap") == "h ");
  CHECK(inserted("gr") == "");
  CHECK(inserted("p") == "");
  CHECK(inserted("graph ") == "3");
}

TEST_CASE("every command says what it is for, and names are told apart") {
  List names;
  for (const Command& command : all_commands()) {
    CAPTURE(command.name);
    names.push_back(command.name);
    CHECK_FALSE(command.summary.empty());
    CHECK(command.run);
    CHECK(command.least <= std::max(command.most, command.least));
    CHECK((command.has_options || command.completes.size() <= command.most));
    CHECK(find_command(command.name) == &command);
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  CHECK_FALSE(find_command("nonsense"));
}

}  // namespace troupe::repl
