#include "actors/stage/finite_check.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/doctest.h"

using troupe::actors::all_finite;
using troupe::actors::FiniteCheck;
using troupe::actors::LayerWatch;

namespace {

at::Tensor spoilt(double value) {
  auto values = at::rand({3, 5});
  values[1][2].fill_(value);
  return values;
}

/// Returns the text of what a check throws; empty if it throws nothing.
template <typename Call>
std::string words_of(const Call& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

LayerWatch watched(const std::vector<double>& given) {
  LayerWatch layers;
  layers.see("an older step's", at::full({1}, NAN));
  layers.begin();
  for (std::size_t i = 0; i < given.size(); ++i)
    layers.see("block " + std::to_string(i + 4), at::full({2, 3}, given[i]));
  return layers;
}

}  // namespace

TEST_CASE("all finite: NaN, both infinities, a sum that overflows, nothing") {
  CHECK(all_finite(at::rand({3, 5})));
  CHECK(all_finite(at::empty({0, 5})));
  CHECK(all_finite(at::full({4}, 3e38F)));
  CHECK(all_finite(at::full({4}, 6e4, at::kHalf)));
  for (const double value : {NAN, INFINITY, -INFINITY})
    CHECK_FALSE(all_finite(spoilt(value)));
}

TEST_CASE("the first layer that met it is named") {
  FiniteCheck check(FiniteCheck::Read::at_once);
  const auto words = [&](const std::vector<double>& given) {
    return words_of([&] { check.require(spoilt(NAN), "it", "float32", watched(given)); });
  };
  CHECK(words({1, 2, NAN, NAN}) == "[actor] it is not finite after block 5, in float32");
  CHECK(words({1, INFINITY, NAN}) == "[actor] it is not finite after block 4, in float32");
  CHECK(words({1, 2, 3}) == "[actor] it is not finite after block 6, in float32");
  CHECK(words({NAN, 2, 3}) == "[actor] it is not finite before block 4, in float32");
  CHECK(words({}) == "[actor] it is not finite, in float32");
  // Layers are looked at only where the result is not finite.
  check.require(at::rand({3}), "it", "float32", watched({NAN}));
  check.require(at::empty({0}), "it", "float32", watched({NAN}));
}

TEST_CASE("an answer that is read later names what it is about, once") {
  FiniteCheck check(FiniteCheck::Read::later);
  const auto ask = [&](const at::Tensor& values, const std::string& what) {
    return words_of([&] { check.require(values, what, "float16", watched({1, NAN})); });
  };
  CHECK(ask(at::full({4}, 3e38F), "step 0").empty());
  for (const double value : {NAN, INFINITY, -INFINITY}) {
    CHECK(ask(spoilt(value), "step 1").empty());
    CHECK(ask(at::rand({3}), "step 2") == "[actor] step 1 is not finite after block 4, in float16");
    CHECK(words_of([&] { check.read(); }).empty());
    CHECK(ask(spoilt(value).to(at::kHalf), "step 3").empty());
    CHECK(words_of([&] { check.settle([] {}); }) ==
          "[actor] step 3 is not finite after block 4, in float16");
    CHECK(words_of([&] { check.settle([] {}); }).empty());
  }
}

TEST_CASE("who is told instead hears of all of it, in order, and the check goes on") {
  std::vector<std::string> told;
  const auto tell = [&](const std::string& sentence) { told.push_back(sentence); };
  const std::string words = " is not finite after block 4, in float32";
  FiniteCheck now(FiniteCheck::Read::at_once, tell);
  FiniteCheck later(FiniteCheck::Read::later, tell);
  for (auto* check : {&now, &later}) {
    for (const char* what : {"step 1", "step 2"})
      check->require(spoilt(NAN), what, "float32", watched({1, NAN}));
    check->require(at::rand({3}), "step 3", "float32", watched({1, 1}));
    check->require_now(spoilt(INFINITY), "the picture", "float32");
  }
  const std::vector<std::string> each{"[actor] step 1" + words, "[actor] step 2" + words,
                                      "[actor] the picture is not finite, in float32"};
  auto both = each;
  both.insert(both.end(), each.begin(), each.end());
  CHECK(told == both);
}
