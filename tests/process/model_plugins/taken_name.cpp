// A model plugin whose sampler has the name of one of Troupe's own.
#include "models/spec/model_plugin.h"

static void add_to(troupe::spec::ModelRegistry& registry) {
  registry.add(troupe::spec::UserSampler{.name = "ddim", .class_name = "OtherScheduler"});
}

TROUPE_MODEL_PLUGIN(add_to)
