#include "actors/mailbox.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/inspect.h"

namespace troupe::actors {
namespace {

bool is_of(const Letter& letter, std::uint64_t job) {
  if (const auto* begin = std::get_if<wire::BeginJob>(&letter.content)) return begin->job == job;
  const auto* entry = std::get_if<TaskEntry>(&letter.content);
  return entry && entry->command.job == job;
}

}  // namespace

bool Mailbox::put_inspection(std::shared_ptr<Inspection> inspection, bool rehearses) {
  constexpr std::size_t kMost = 16;
  if (rehearses && std::holds_alternative<wire::RenderLatents>(inspection->question)) {
    const auto waiting = with([](const auto& letters) {
      return std::ranges::count_if(letters, [](const Letter& letter) {
        return std::holds_alternative<std::shared_ptr<Inspection>>(letter.content);
      });
    });
    if (std::cmp_greater_equal(waiting, kMost)) return false;
    put({{}, std::move(inspection)});
    return true;
  }
  return runtime::Mailbox<Letter>::put_between({{}, std::move(inspection)}, kMost);
}

void Mailbox::put_end(const wire::Header& header, const wire::EndJob& end) {
  const bool more = with([&](const auto& letters) {
    return std::any_of(letters.begin(), letters.end(),
                       [&](const Letter& letter) { return is_of(letter, end.job); });
  });
  if (more) return put({header, end});
  runtime::Mailbox<Letter>::put_between({header, end}, std::numeric_limits<std::size_t>::max());
}

std::vector<TaskEntry> Mailbox::take_receives(std::uint64_t epoch, Past past) {
  return with([&](auto& letters) {
    std::vector<TaskEntry> receives;
    for (auto letter = letters.begin(); letter != letters.end();) {
      const auto* entry = std::get_if<TaskEntry>(&letter->content);
      if (!entry) break;
      const bool micro_step = entry->command.kind == wire::TaskKind::micro_step;
      if (past == Past::micro_steps && !entry->command.receive && !micro_step) break;
      if (!entry->command.receive || entry->epoch != epoch) {
        ++letter;
        continue;
      }
      receives.push_back(*entry);
      letter = letters.erase(letter);
    }
    return receives;
  });
}

std::size_t Mailbox::look(std::size_t most, const std::function<void(const Letter&)>& show) const {
  return with([&](const auto& letters) {
    for (std::size_t i = 0; i < std::min(most, letters.size()); ++i)
      show(letters[i]);
    return letters.size();
  });
}

}  // namespace troupe::actors
