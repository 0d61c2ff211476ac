#include "actors/mailbox.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/inspect.h"

namespace troupe::actors {
namespace {

bool is_of(const Message& message, std::uint64_t job) {
  if (const auto* begin = std::get_if<wire::BeginJob>(&message.content)) return begin->job == job;
  const auto* entry = std::get_if<TaskEntry>(&message.content);
  return entry && entry->command.job == job;
}

}  // namespace

bool Mailbox::put_inspection(std::shared_ptr<Inspection> inspection, bool rehearses) {
  constexpr std::size_t kMost = 16;
  if (rehearses && std::holds_alternative<wire::RenderLatents>(inspection->question)) {
    const auto waiting = with([](const auto& messages) {
      return std::ranges::count_if(messages, [](const Message& message) {
        return std::holds_alternative<std::shared_ptr<Inspection>>(message.content);
      });
    });
    if (std::cmp_greater_equal(waiting, kMost)) return false;
    put({{}, std::move(inspection)});
    return true;
  }
  return runtime::Mailbox<Message>::put_between({{}, std::move(inspection)}, kMost);
}

void Mailbox::put_end(const wire::Header& header, const wire::EndJob& end) {
  const bool more = with([&](const auto& messages) {
    return std::any_of(messages.begin(), messages.end(),
                       [&](const Message& message) { return is_of(message, end.job); });
  });
  if (more) return put({header, end});
  runtime::Mailbox<Message>::put_between({header, end}, std::numeric_limits<std::size_t>::max());
}

std::vector<TaskEntry> Mailbox::take_receives(std::uint64_t epoch, Past past) {
  return with([&](auto& messages) {
    std::vector<TaskEntry> receives;
    for (auto message = messages.begin(); message != messages.end();) {
      const auto* entry = std::get_if<TaskEntry>(&message->content);
      if (!entry) break;
      const bool micro_step = entry->command.kind == wire::TaskKind::micro_step;
      if (past == Past::micro_steps && !entry->command.receive && !micro_step) break;
      if (!entry->command.receive || entry->epoch != epoch) {
        ++message;
        continue;
      }
      receives.push_back(*entry);
      message = messages.erase(message);
    }
    return receives;
  });
}

std::size_t Mailbox::look(std::size_t most, const std::function<void(const Message&)>& show) const {
  return with([&](const auto& messages) {
    for (std::size_t i = 0; i < std::min(most, messages.size()); ++i)
      show(messages[i]);
    return messages.size();
  });
}

}  // namespace troupe::actors
