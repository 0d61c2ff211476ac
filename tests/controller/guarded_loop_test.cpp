#include "controller/app/guarded_loop.h"

#include <boost/asio/post.hpp>
#include <stdexcept>
#include <vector>

#include "tests/support/doctest.h"

using troupe::cluster::run_guarded;

TEST_CASE("what a handler throws is told in one line, and the loop goes on") {
  boost::asio::io_context io{1};
  std::vector<std::string> said;
  boost::asio::post(io, [] { throw std::runtime_error("torn\nin two"); });
  boost::asio::post(io, [] { throw 7; });
  boost::asio::post(io, [&] { said.push_back("after"); });
  run_guarded(io, [&](const std::string& what) { said.push_back(what); });
  CHECK(said == std::vector<std::string>{"torn in two", "an exception without text", "after"});
}

TEST_CASE("a loop that only throws ends, and so does one whose fault cannot be handled") {
  boost::asio::io_context io{1};
  int thrown = 0;
  std::function<void()> again = [&] {
    boost::asio::post(io, again);
    ++thrown;
    throw std::runtime_error("once more");
  };
  boost::asio::post(io, again);
  run_guarded(io, [](const std::string&) {});
  CHECK(thrown > 1);
  CHECK(thrown < 100);
  thrown = 0;
  run_guarded(io, [](const std::string&) { throw std::runtime_error("no way out"); });
  CHECK(thrown == 1);
}
