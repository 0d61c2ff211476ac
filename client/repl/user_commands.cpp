#include <iostream>

#include "base/numbers.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"
#include "client/repl/call_arguments.h"
#include "client/repl/command.h"
#include "client/repl/documents.h"
#include "client/repl/session.h"
#include "troupe/actor.h"

namespace troupe::repl {
namespace {

using cli::Row;
using cli::take;

constexpr std::chrono::seconds kCallDeadline{60};

template <class T>
nlohmann::json listed(const std::vector<T>& all) {
  auto list = nlohmann::json::array();
  for (const T& one : all)
    list.push_back(to_json(one));
  return list;
}

void classes(Session& session, const Words&) {
  const auto all = take(session.client().actors().classes());
  if (session.json()) return cli::print_json_line({{"classes", listed(all)}});
  std::vector<Row> rows;
  for (const auto& one : all) {
    rows.push_back({one.name, "(constructor)", one.arguments, "-", one.plugin});
    for (const auto& method : one.methods)
      rows.push_back({one.name, method.name, method.arguments, method.result, "-"});
    for (const auto& host : one.lacking)
      rows.push_back({one.name, "(not on)", "-", "-", host});
  }
  if (rows.empty()) {
    std::cout << "no classes: give them to `troupe start --plugin`\n";
    return;
  }
  std::cout << cli::table({"CLASS", "METHOD", "ARGUMENTS", "RESULT", "PLUGIN"}, rows,
                          cli::output_width());
}

void user_actors(Session& session, const Words&) {
  const auto all = take(session.client().actors().list());
  if (session.json()) return cli::print_json_line({{"actors", listed(all)}});
  std::vector<Row> rows;
  for (const auto& actor : all) {
    rows.push_back({std::to_string(actor.id), actor.name.empty() ? "-" : actor.name,
                    actor.class_name, to_string(actor.state), actor.host, std::to_string(actor.pid),
                    std::to_string(actor.restarts), actor.owner.empty() ? "-" : actor.owner,
                    actor.cause.empty() ? "-" : actor.cause});
  }
  if (rows.empty()) {
    std::cout << "no users' actors\n";
    return;
  }
  std::cout << cli::table(
      {"ID", "NAME", "CLASS", "STATE", "HOST", "PID", "RESTARTS", "OWNER", "LAST CAUSE"}, rows,
      cli::output_width(), cli::Overflow::shorten);
}

std::uint64_t id_of(Session& session, const std::string& word) {
  if (const auto id = parse_number<std::uint64_t>(word)) return *id;
  return take(session.client().actors().find(word));
}

void call(Session& session, const Words& words) {
  const auto id = id_of(session, words[0]);
  const std::string arguments = call_arguments({words.begin() + 2, words.end()});
  const auto result =
      take(session.client().actors().call_text(id, words[1], arguments, kCallDeadline));
  if (session.json())
    return cli::print_json_line({{"result", nlohmann::json::parse(result, nullptr, false)}});
  std::cout << result << "\n";
}

}  // namespace

std::vector<Command> user_commands() {
  return {
      {.name = "classes",
       .arguments = {},
       .summary = "users' classes of actors, their methods and types",
       .details = {},
       .completes = {},
       .run = classes},
      {.name = "user-actors",
       .arguments = {},
       .summary = "users' actors: what each is and where it lives",
       .details = {},
       .completes = {},
       .run = user_actors},
      {.name = "call",
       .arguments = "ID|NAME METHOD [ARGUMENT…]",
       .summary = "call a method of a user's actor and show what it gives",
       .details = "An argument that is JSON stands as it is, every other word is a string:\n"
                  "  call counter add 5\n"
                  "  call 3 describe \"two words\" [1,2]",
       .completes = {Argument::user_actor, Argument::method},
       .least = 2,
       .most = 64,
       .run = call},
  };
}

}  // namespace troupe::repl
