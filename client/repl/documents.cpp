#include "client/repl/documents.h"

#include <cmath>

namespace troupe::repl {
namespace {

using nlohmann::json;

/// Returns a value as JSON, which has no number for values that are not finite.
json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace

json to_json(const MailboxInfo& mailbox) {
  json entries = json::array();
  for (const MailboxEntry& entry : mailbox.entries)
    entries.push_back({{"what", entry.what},
                       {"job", entry.job},
                       {"step", entry.step},
                       {"patch", entry.patch},
                       {"part", entry.part}});
  return {{"doing", mailbox.doing},
          {"doing_seconds", mailbox.doing_seconds},
          {"waiting", mailbox.total},
          {"handled", mailbox.handled},
          {"entries", entries}};
}

json to_json(const TensorsInfo& info) {
  json tensors = json::array();
  for (const TensorInfo& tensor : info.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", tensor.dtype},
                       {"mean", number(tensor.mean)},
                       {"min", number(tensor.min)},
                       {"max", number(tensor.max)},
                       {"not_finite", tensor.not_finite}});
  return {{"at", info.at}, {"tensors", tensors}};
}

json to_json(const TensorValues& info) {
  json values = json::array();
  for (const double value : info.values)
    values.push_back(number(value));
  return {{"dtype", info.dtype}, {"shape", info.shape}, {"values", values}};
}

json to_json(const ActorClassInfo& one) {
  json methods = json::array();
  for (const auto& method : one.methods)
    methods.push_back(
        {{"name", method.name}, {"arguments", method.arguments}, {"result", method.result}});
  return {{"name", one.name},     {"arguments", one.arguments}, {"needs_torch", one.needs_torch},
          {"plugin", one.plugin}, {"methods", methods},         {"lacking", one.lacking}};
}

json to_json(const UserActorInfo& actor) {
  return {{"id", actor.id},
          {"name", actor.name},
          {"class", actor.class_name},
          {"state", to_string(actor.state)},
          {"host", actor.host},
          {"pid", actor.pid},
          {"detached", actor.detached},
          {"restarts", actor.restarts},
          {"gpus", actor.gpus},
          {"owner", actor.owner},
          {"cause", actor.cause}};
}

}  // namespace troupe::repl
