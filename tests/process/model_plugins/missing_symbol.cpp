// A model plugin that calls what this troupe does not have.
#include "models/spec/model_plugin.h"

namespace troupe::spec {
void of_another_troupe();
}

static void add_to(troupe::spec::ModelRegistry&) {
  troupe::spec::of_another_troupe();
}

TROUPE_MODEL_PLUGIN(add_to)
