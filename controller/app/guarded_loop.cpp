#include "controller/app/guarded_loop.h"

#include <algorithm>
#include <exception>

namespace troupe::cluster {
namespace {

constexpr int kMaxFaults = 8;

}  // namespace

void run_guarded(boost::asio::io_context& io,
                 const std::function<void(const std::string&)>& on_fault) {
  for (int faults = 0; faults < kMaxFaults; ++faults) {
    std::string what = "an exception without text";
    try {
      io.run();
      return;
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    std::replace(what.begin(), what.end(), '\n', ' ');
    try {
      on_fault(what);
    } catch (...) {
      return;
    }
  }
}

}  // namespace troupe::cluster
