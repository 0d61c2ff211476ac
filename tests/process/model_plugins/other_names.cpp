// A model plugin without a network half of its own: a test lays another's beside it.
#include "models/spec/model_plugin.h"

static void add_to(troupe::spec::ModelRegistry& registry) {
  registry.add(troupe::spec::UserSampler{.name = "other-euler", .class_name = "OtherScheduler"});
}

TROUPE_MODEL_PLUGIN(add_to)
