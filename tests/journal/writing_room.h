#pragma once
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/journal/writer.h"
#include "tests/journal/jobs.h"

namespace troupe::testing {

/// Time that a good time must last, after which a disk counts as mended.
inline constexpr std::chrono::milliseconds kLasting{300};

/// A journal with its writer, on a loop that the test turns itself.
struct WritingRoom {
  boost::asio::io_context io{1};
  std::vector<std::string> notes;
  Desk desk;
  std::unique_ptr<journal::Writer> writer;
  std::unique_ptr<journal::Journal> journal;

  explicit WritingRoom(std::unique_ptr<journal::Store> store) {
    writer = std::make_unique<journal::Writer>(
        io, std::move(store), [this](const std::string& what) { notes.push_back(what); }, kLasting);
    journal = std::make_unique<journal::Journal>(
        [this](journal::Change change, journal::Journal::Done done) {
          writer->write(std::move(change), std::move(done));
        },
        desk.bytes_of(), journal::Calendar{1000});
  }
  bool until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!holds() && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_for(std::chrono::milliseconds(5));
    }
    return holds();
  }
};

}  // namespace troupe::testing
