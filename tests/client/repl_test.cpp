#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "client/repl/command.h"
#include "client/repl/completion.h"
#include "client/repl/words.h"
#include "tests/client/run_command.h"
#include "tests/support/doctest.h"

namespace troupe::repl {
namespace {

using testing::Scratch;
using List = std::vector<std::string>;
using Commands = std::vector<Words>;

Completion completion_of(const std::string& before) {
  const auto words_for = [](Argument argument, const Words& before) {
    if (argument == Argument::job) return List{"1", "12", "3"};
    if (argument == Argument::actor) return List{"0", "1"};
    if (argument == Argument::user_actor) return List{"7", "two words", "visits"};
    if (argument == Argument::method && before == Words{"call", "two words"}) return List{"add"};
    if (argument == Argument::method && before == Words{"call", "visits"}) return List{"value"};
    if (argument == Argument::tensor && before == Words{"slice", "0", "3"}) return List{"kv 0"};
    if (argument == Argument::command) return List{"jobs", "queue"};
    if (argument == Argument::fault) return List{"kill", "stop"};
    if (argument == Argument::speaker) return List{"0", "controller"};
    return List{};
  };
  return complete(before, all_commands(), words_for);
}

List complete_line(const std::string& before) {
  return completion_of(before).choices;
}

std::string inserted(const std::string& before) {
  return completion_of(before).to_insert();
}

/// The line with what Tab adds.
std::string tab(const std::string& before) {
  return before + inserted(before);
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

TEST_CASE("a word as it is typed comes back as it was") {
  for (const std::string word : {"plain", "two words", "a\"b\\c", "it's", "#x", "[0, 1]", ";"}) {
    CHECK(split_commands(escaped(word, 0)) == Commands{{word}});
    CHECK(split_commands("\"" + escaped(word, '"') + "\"") == Commands{{word}});
  }
  CHECK(split_commands("'" + escaped("a\"b\\c d", '\'') + "'") == Commands{{"a\"b\\c d"}});
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
  CHECK(complete_line("graph 1 ") == List{"all"});
  CHECK(complete_line("until 1 ") == List{"nan"});
  CHECK(complete_line("nonsense ").empty());
  CHECK(complete_line("submit --prompt \"gr").empty());
  CHECK(complete_line("submit --warm") == List{"--warmup"});
  CHECK(complete_line("follow --sav") == List{"--save-latents"});
  // A method is one of the actor's that is called.
  CHECK(complete_line("call ") == List{"7", "two words", "visits"});
  CHECK(complete_line("call visits ") == List{"value"});
  CHECK(complete_line("jobs; call \"two words\" a") == List{"add"});
  CHECK(complete_line("call nobody ").empty());
  CHECK(inserted("grap") == "h ");
  CHECK(inserted("gr") == "");
  CHECK(inserted("p") == "");
  CHECK(inserted("graph 1") == "");
  CHECK(inserted("graph 3") == " ");
  CHECK(tab("slice 0 3 ") == "slice 0 3 kv\\ 0 ");
  CHECK(tab("call two") == "call two\\ words ");
  CHECK(tab("call two\\ w") == "call two\\ words ");
  CHECK(tab("call \"tw") == "call \"two words\" ");
  CHECK(tab("call 'two w") == "call 'two words' ");
  CHECK(complete_line("timeline ") == List{"1", "12", "3", "all"});
  CHECK(tab("timeline 3 ") == "timeline 3 -o ");
  CHECK(complete_line("logs ") == List{"0", "controller"});
  CHECK(complete_line("help q") == List{"queue"});
  CHECK(complete_line("inject ") == List{"kill", "stop"});
}

TEST_CASE("completion of options' values") {
  CHECK(complete_line("submit --kv ") == List{"predict", "stale"});
  CHECK(tab("submit --prompt \"a b\" --method dis") ==
        "submit --prompt \"a b\" --method distrifusion ");
  CHECK(complete_line("submit --dtype ") == List{"bfloat16", "float16", "float32"});
  CHECK(complete_line("submit --sampler eul") == List{"euler", "euler-ancestral"});
  CHECK(complete_line("submit --steps ").empty());
  CHECK(complete_line("submit --prompt ").empty());
  CHECK(complete_line("submit --elastic --se") == List{"--seed"});  // no value belongs to a flag
  CHECK(complete_line("submit -").size() > 30);
  CHECK(complete_line("follow ") == List{"1", "12", "3"});
}

TEST_CASE("completion of files") {
  const Scratch scratch;
  for (const char* name : {"now.png", "x-\u00e4.png", "x-\u00f6.png", "l.safetensors", "trace.json",
                           "with space.png", ".hidden.png"})
    scratch.file(name, "");
  std::filesystem::create_directory(scratch / "pictures");
  const std::string folder = scratch / "";
  CHECK(complete_line("preview 3 " + folder) ==
        List{folder + "now.png", folder + "pictures/", folder + "with space.png",
             folder + "x-\u00e4.png", folder + "x-\u00f6.png"});
  CHECK(complete_line("preview 3 " + folder + ".") == List{folder + ".hidden.png"});
  CHECK(tab("dump 3 " + folder + "l") == "dump 3 " + folder + "l.safetensors ");
  // No half of a letter.
  CHECK(tab("preview 3 " + folder + "x") == "preview 3 " + folder + "x-");
  CHECK(tab("preview 3 " + folder + "w") == "preview 3 " + folder + "with\\ space.png ");
  CHECK(tab("preview 3 '" + folder + "w") == "preview 3 '" + folder + "with space.png' ");
  CHECK(tab("preview 3 " + folder + "p") == "preview 3 " + folder + "pictures/");
  CHECK(tab("timeline 3 -o " + folder + "t") == "timeline 3 -o " + folder + "trace.json ");
  CHECK(tab("submit --model " + folder) == "submit --model " + folder + "pictures/");
  CHECK(tab("submit --init-latents " + folder + "l") ==
        "submit --init-latents " + folder + "l.safetensors ");
  CHECK(complete_line("follow 3 --output " + folder + "no") == List{folder + "now.png"});
  CHECK(complete_line("preview 3 /nonexistent/").empty());
}

TEST_CASE("every argument that the help lists is completed") {
  for (const Command& command : all_commands()) {
    CAPTURE(command.name);
    // Not SECONDS, LINES, SLICE, how many steps and what a method takes.
    const std::set<std::string> free{"[N]", "[SECONDS]", "[LINES]", "[SLICE]", "[ARGUMENT…]"};
    std::istringstream words(command.arguments);
    std::size_t completed = 0;
    for (std::string word; words >> word;)
      completed += free.contains(word) ? 0 : 1;
    if (!command.shared) CHECK(command.completes.size() == completed);
  }
}

TEST_CASE(
    "a command of shell and console is in the table once, and takes the same options in both") {
  std::set<std::string> names;
  for (const Command& command : command_table()) {
    CAPTURE(command.name);
    CHECK(names.insert(command.name).second);
    CHECK((command.in_shell() || command.in_console()));
    // Both have it only as one command.
    CHECK_FALSE((command.verb && command.in_console()));
    if (!command.shared) continue;
    const auto options_in = [&](cli::Where where) {
      cli::Options options;
      const auto verb = command.shared(options, where);
      std::set<std::string> all;
      for (const auto& option : options.all())
        for (const auto& name : option->names())
          all.insert(name);
      return all;
    };
    auto shell = options_in(cli::Where::shell), console = options_in(cli::Where::console);
    // The console is connected already, says for all commands whether they print JSON, and waits
    // for no job unless it is told to.
    for (const char* alone : {"--connect", "--keys", "--json"})
      shell.erase(alone);
    if (shell.contains("--detach")) CHECK(console.erase("--follow") == 1);
    CHECK(shell == console);
  }
  for (const char* both : {"submit", "jobs", "cancel", "logs", "timeline"})
    CHECK(find_command(both)->in_shell());
  CHECK_FALSE(find_command("follow")->in_shell());
}

TEST_CASE("every command says what it is for, and names are told apart") {
  List names;
  for (const Command& command : all_commands()) {
    CAPTURE(command.name);
    names.push_back(command.name);
    CHECK_FALSE(command.summary.empty());
    CHECK(command.in_console());
    CHECK_FALSE((command.run && command.shared));
    CHECK(command.least <= std::max(command.most, command.least));
    CHECK((command.shared || command.completes.size() <= command.most));
    CHECK(find_command(command.name) == &command);
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  CHECK_FALSE(find_command("nonsense"));
  CHECK(find_command("q") == find_command("quit"));
  CHECK(find_command("?") == find_command("help"));
}

}  // namespace troupe::repl
