#pragma once
#include "models/spec/config.h"
#include "models/spec/scheduler_config.h"

namespace troupe::spec {

/// Reads the keys that all schedules with betas have; `kind` and `file` of `c` are set.
void read_common(const ConfigReader& in, SchedulerConfig& c);

/// Read the keys of one scheduler class each, after the common ones. Values that are not supported
/// are refused by key.
void read_dpm(const ConfigReader& in, SchedulerConfig& c);
void read_ddim(const ConfigReader& in, SchedulerConfig& c);
void read_euler(const ConfigReader& in, SchedulerConfig& c);
void read_ddpm(const ConfigReader& in, SchedulerConfig& c);
void read_euler_ancestral(const ConfigReader& in, SchedulerConfig& c);
void read_unipc(const ConfigReader& in, SchedulerConfig& c);
void read_flow_match(const ConfigReader& in, SchedulerConfig& c);
void read_lcm(const ConfigReader& in, SchedulerConfig& c);
void read_pndm(const ConfigReader& in, SchedulerConfig& c);

}  // namespace troupe::spec
