// A model plugin that says that it was built for a version that never was.
#include "models/spec/model_plugin.h"

namespace {

const troupe::spec::plugin::Description<troupe::spec::ModelRegistry> kDescription{
    99, sizeof(kDescription), TROUPE_MODEL_BUILD, TROUPE_MODEL_LAYOUT, nullptr};

}  // namespace

extern "C" const void* troupe_model_plugin() {
  return &kDescription;
}
