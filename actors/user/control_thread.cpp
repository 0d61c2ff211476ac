#include "actors/user/control_thread.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <stdexcept>

#include "base/numbers.h"
#include "transport/control/descriptors.h"

namespace troupe::runtime {
namespace {

constexpr std::chrono::milliseconds kTick{100};

}  // namespace

ControlThread::ControlThread(ProcessOptions options)
    : options_(std::move(options)), loop_(std::make_shared<control::SharedLoop>()), timer_(io()) {
  connect();
}

ControlThread::~ControlThread() = default;

void ControlThread::connect() {
  if (!options_.context) options_.context = control::make_context();
  control::ConnectionOptions options;
  options.endpoint = options_.control_endpoint;
  options.incarnation = options_.incarnation;
  options.hello = options_.hello;
  options.keys = options_.keys;
  options.socket.context = options_.context;
  connection_ = std::make_unique<control::Connection>(io(), options);
  connection_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
    if (header.kind == wire::Kind::shutdown) return stop(0, "shutdown");
    if (header.kind == wire::Kind::notice) {
      const auto text = wire::decode<wire::Notice>(payload).text;
      std::fprintf(stderr, "%s: %s\n", options_.program.c_str(), text.c_str());
      return;
    }
    handlers_.on_message(header, payload);
  });
  connection_->on_gap([this](std::uint64_t missing) {
    stop(3, std::to_string(missing) + " messages of the controller never came");
  });
  connection_->on_lost(
      [this](const control::Loss& loss) { stop(3, "controller lost: " + loss.why); });
}

void ControlThread::open_blobs(const std::string& secret) {
  if (options_.blob_endpoint.empty()) return;
  control::ConnectionOptions options;
  options.endpoint = options_.blob_endpoint;
  options.incarnation = options_.incarnation;
  options.hello = options_.hello;
  options.hello.attributes.clear();
  options.hello.secret = secret;
  options.keys = options_.keys;
  options.socket.context = options_.context;
  blob_connection_ = std::make_unique<control::BlobConnection>(io(), options, blobs_);
  blob_connection_->on_lost(
      [this](const control::Loss& loss) { stop(3, "blob channel lost: " + loss.why); });
  blob_connection_->start(
      {}, [this](const wire::Failure& failure) { stop(2, "no blob channel: " + failure.what); });
}

int ControlThread::run(Handlers handlers) {
  handlers_ = std::move(handlers);
  connection_->start(
      [this](const wire::Welcome& welcome) {
        open_blobs(welcome.secret);
        if (handlers_.on_ready) handlers_.on_ready();
        tick();
      },
      [this](const wire::Failure& failure) { stop(2, failure.what); });
  loop_->run();
  return exit_code_;
}

void ControlThread::tick() {
  connection_->set_progress(handlers_.progress());
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !stopping_) tick();
  });
}

void ControlThread::post(std::function<void(control::Connection&)> action) {
  loop_->post([this, action = std::move(action)] {
    if (!stopping_) action(*connection_);
  });
}

control::BlobResult ControlThread::fetch_blob(std::uint64_t id, std::uint64_t bytes,
                                              control::Milliseconds deadline,
                                              const std::function<void()>& tick) {
  constexpr control::Milliseconds kTickEvery{200};
  const auto until = control::Clock::now() + deadline + std::chrono::seconds(1);
  auto promise = std::make_shared<std::promise<control::BlobResult>>();
  auto result = promise->get_future();
  loop_->post([this, id, bytes, deadline, promise] {
    blob_connection_->fetch(id, bytes, deadline, [promise](control::BlobResult blob) {
      promise->set_value(std::move(blob));
    });
  });
  // The fetch answers within its deadline; the second more is for a control thread that is gone.
  while (result.wait_for(kTickEvery) != std::future_status::ready) {
    tick();
    if (control::Clock::now() < until) continue;
    return {nullptr,
            {wire::FailureCode::timeout, "blob " + std::to_string(id) + " did not arrive in time"}};
  }
  return result.get();
}

void ControlThread::stop(int exit_code, const std::string& why) {
  if (stopping_) return;
  stopping_ = true;
  exit_code_ = exit_code;
  if (exit_code != 0) std::fprintf(stderr, "%s: %s\n", options_.program.c_str(), why.c_str());
  timer_.cancel();
  if (handlers_.on_stop) handlers_.on_stop();
  connection_->close(why);
  if (blob_connection_) blob_connection_->close();
  loop_->stop();
}

void begin_as_child(int parent_pid) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (parent_pid > 0 && getppid() != parent_pid) std::_Exit(3);
  signal(SIGINT, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  control::meet_limits();
}

std::uint64_t take_incarnation() {
  const char* text = std::getenv("TROUPE_INCARNATION");
  const auto number = text ? parse_number<std::uint64_t>(text) : std::nullopt;
  unsetenv("TROUPE_INCARNATION");
  if (!number || *number == 0)
    throw std::runtime_error("TROUPE_INCARNATION is missing: node agents start this program");
  return *number;
}

std::string take_secret(const char* variable) {
  char* value = std::getenv(variable);
  if (value == nullptr) return "";
  std::string secret(value);
  ::explicit_bzero(value, secret.size());
  unsetenv(variable);
  return secret;
}

void leave(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace troupe::runtime
