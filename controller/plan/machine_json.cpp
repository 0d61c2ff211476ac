#include "controller/plan/machine_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace troupe::plan {
namespace {

using nlohmann::json;

constexpr int kMost = 1 << 20;

json to_json(const Interconnect& link) {
  return {{"latency", link.latency}, {"bandwidth", link.bandwidth}};
}

[[noreturn]] void refuse_machine(const std::string& key, const std::string& why) {
  throw std::invalid_argument("[machine] " + key + " " + why);
}

const json& at(const json& object, const std::string& key) {
  if (!object.is_object() || !object.contains(key)) refuse_machine(key, "is missing");
  return object.at(key);
}

double number(const json& object, const std::string& key, bool above_zero) {
  const auto& value = at(object, key);
  if (!value.is_number()) refuse_machine(key, "is no number");
  const auto read = value.get<double>();
  if (!std::isfinite(read) || read < 0 || (above_zero && read == 0))
    refuse_machine(key, "is out of range");
  return read;
}

int whole(const json& object, const std::string& key, int least) {
  const auto read = number(object, key, false);
  if (read < least || read > kMost || read != std::floor(read))
    refuse_machine(key, "is out of range");
  return static_cast<int>(read);
}

bool flag(const json& object, const std::string& key) {
  const auto& value = at(object, key);
  if (!value.is_boolean()) refuse_machine(key, "is neither true nor false");
  return value.get<bool>();
}

Interconnect link_of(const json& object, const std::string& key) {
  const auto& value = at(object, key);
  return {number(value, "latency", false), number(value, "bandwidth", true)};
}

}  // namespace

json to_json(const Machine& machine) {
  const auto& own = machine.device;
  return {{"name", machine.name},
          {"device",
           {{"half_flops", own.half_flops},
            {"float_flops", own.float_flops},
            {"attention_share", own.attention_share},
            {"bandwidth", own.bandwidth},
            {"memory", own.memory},
            {"host_bandwidth", own.host_bandwidth},
            {"launch", own.launch},
            {"queues", own.queues},
            {"half_speed_elements", own.half_speed_elements},
            {"head_step", own.head_step}}},
          {"inside", to_json(machine.inside)},
          {"between", to_json(machine.between)},
          {"devices_per_host", machine.devices_per_host},
          {"devices", machine.devices},
          {"devices_per_socket", machine.devices_per_socket},
          {"across_sockets", machine.across_sockets},
          {"hosts", machine.hosts},
          {"busy_devices_per_host", machine.busy_devices_per_host},
          {"gpus", machine.gpus},
          {"fp8", machine.fp8},
          {"measured", machine.measured},
          {"notes", machine.notes}};
}

Machine machine_from_json(const json& from) {
  Machine machine;
  const auto& name = at(from, "name");
  if (!name.is_string()) refuse_machine("name", "is no text");
  machine.name = name.get<std::string>();
  const auto& device = at(from, "device");
  auto& own = machine.device;
  own.half_flops = number(device, "half_flops", true);
  own.float_flops = number(device, "float_flops", true);
  own.attention_share = number(device, "attention_share", true);
  own.bandwidth = number(device, "bandwidth", true);
  own.memory = static_cast<std::uint64_t>(number(device, "memory", false));
  own.host_bandwidth = number(device, "host_bandwidth", true);
  own.launch = number(device, "launch", false);
  own.queues = flag(device, "queues");
  own.half_speed_elements = number(device, "half_speed_elements", false);
  own.head_step = whole(device, "head_step", 0);
  machine.inside = link_of(from, "inside");
  machine.between = link_of(from, "between");
  machine.devices_per_host = whole(from, "devices_per_host", 1);
  machine.devices = whole(from, "devices", 1);
  machine.devices_per_socket = whole(from, "devices_per_socket", 0);
  machine.across_sockets = number(from, "across_sockets", true);
  machine.busy_devices_per_host = whole(from, "busy_devices_per_host", 0);
  machine.gpus = flag(from, "gpus");
  machine.fp8 = flag(from, "fp8");
  machine.measured = flag(from, "measured");
  const auto& hosts = at(from, "hosts");
  const auto& notes = at(from, "notes");
  if (!hosts.is_array()) refuse_machine("hosts", "is no list");
  if (!notes.is_array()) refuse_machine("notes", "is no list");
  for (const auto& size : hosts)
    machine.hosts.push_back(whole(json{{"hosts", size}}, "hosts", 1));
  for (const auto& note : notes) {
    if (!note.is_string()) refuse_machine("notes", "has one that is no text");
    machine.notes.push_back(note.get<std::string>());
  }
  return machine;
}

}  // namespace troupe::plan
