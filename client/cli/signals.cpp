#include "client/cli/signals.h"

#include <csignal>

namespace troupe::cli {

SignalWatch::SignalWatch() : io_(1), signals_(io_, SIGINT, SIGTERM) {
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) signals_.add(SIGHUP);
  listen();
  thread_ = std::thread([this] { io_.run(); });
}

SignalWatch::~SignalWatch() {
  io_.stop();
  thread_.join();
}

void SignalWatch::on_signal(std::function<void()> action) {
  std::lock_guard lock(mutex_);
  action_ = std::move(action);
  if (caught_ && action_) action_();
}

void SignalWatch::listen() {
  signals_.async_wait([this](const boost::system::error_code& error, int signal) {
    if (error) return;
    int none = 0;
    caught_.compare_exchange_strong(none, signal);
    ++count_;
    stop_.request_stop();
    {
      std::lock_guard lock(mutex_);
      if (action_) action_();
    }
    listen();
  });
}

}  // namespace troupe::cli
