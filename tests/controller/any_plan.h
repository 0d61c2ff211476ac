#pragma once
#include <rapidcheck.h>

#include <algorithm>
#include <string>

#include "tests/controller/planning.h"

namespace troupe::test {

inline int up_to(int most) {
  return *rc::gen::inRange(1, most + 1);
}

inline wire::Parallelism any_degrees() {
  wire::Parallelism degrees{.dp = up_to(2),
                            .cfg = up_to(2),
                            .pp = up_to(5),
                            .ulysses = up_to(3),
                            .ring = up_to(3),
                            .tp = up_to(3)};
  degrees.vae =
      up_to(std::min(32, degrees.cfg * degrees.pp * degrees.ulysses * degrees.ring * degrees.tp));
  return degrees;
}

inline wire::ImageRequest any_request() {
  const auto method =
      *rc::gen::element<Method>(Method::exact, Method::pipefusion, Method::distrifusion);
  auto request =
      square_request(method, method == Method::exact ? 1 : up_to(16), *rc::gen::inRange(0, 3));
  if (method != Method::exact) request.kv = *rc::gen::element<KvUse>(KvUse::stale, KvUse::predict);
  request.images_per_prompt = *rc::gen::inRange(2, 5);
  return request;
}

}  // namespace troupe::test
