#include "tests/user_actors/torch_classes.h"
#include "troupe/actor_plugin.h"
#include "troupe/torch.h"

troupe::Array troupe::testing::Multiplier::times(Array tensor) const {
  return to_array(to_tensor(tensor).mul(factor_));
}

TROUPE_PLUGIN(troupe::testing::Multiplier)
