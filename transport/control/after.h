#pragma once
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <utility>

namespace troupe::control {

/// Calls on the loop when the time has passed, unless the loop ends before.
template <class Duration>
void after(boost::asio::io_context& io, Duration delay, std::function<void()> action) {
  auto timer = std::make_shared<boost::asio::steady_timer>(
      io, std::chrono::duration_cast<boost::asio::steady_timer::duration>(delay));
  timer->async_wait([timer, action = std::move(action)](const boost::system::error_code& error) {
    if (!error) action();
  });
}

}  // namespace troupe::control
