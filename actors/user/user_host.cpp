#include "actors/user/user_host.h"

#include <boost/asio/post.hpp>
#include <stdexcept>

#include "actors/user/json_values.h"
#include "base/error_text.h"

namespace troupe::runtime {
namespace {

constexpr std::size_t kLongestError = 16u << 10;  // bytes

/// The beginning of its first line: it must fit into a message, whatever a user's code has thrown.
std::string short_text(const std::exception& error) {
  return first_line(error.what()).substr(0, kLongestError);
}

/// The text of whatever a user's code has thrown.
std::string thrown() {
  try {
    throw;
  } catch (const std::exception& error) {
    return short_text(error);
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

}  // namespace

/// Marks, for all who look from outside, that a method runs, as long as this object lives.
class UserHost::Running {
 public:
  Running(UserHost& host, const std::string& method) : host_(host) {
    host_.doing_.begin(method);
    host_.progress_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Running() {
    host_.progress_.fetch_add(1, std::memory_order_relaxed);
    host_.doing_.end();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  UserHost& host_;
};

UserHost::UserHost(UserHostOptions options)
    : options_(std::move(options)), context_(control::make_context()), doing_(options_.doing) {
  ProcessOptions process;
  process.program = "actor " + std::to_string(options_.id);
  process.control_endpoint = options_.control_endpoint;
  process.incarnation = options_.incarnation;
  process.context = context_;
  process.keys = options_.keys;
  process.hello.role = PeerRole::user_actor;
  process.hello.name = process.program;
  process.hello.software = "troupe " TROUPE_VERSION;
  process.hello.attributes["id"] = std::to_string(options_.id);
  process.hello.attributes["token"] = options_.token;
  process_ = std::make_unique<Process>(std::move(process));
}

UserHost::~UserHost() {
  mailbox_.close();
  if (worker_.joinable()) worker_.join();
}

int UserHost::run() {
  control::SocketOptions socket;
  socket.context = context_;
  exchange_ = calls::Exchange::make({.loop = process_->loop(),
                                     .controller = [this]() -> control::Connection* {
                                       auto& connection = process_->connection();
                                       return connection.connected() ? &connection : nullptr;
                                     },
                                     .blobs = process_->blobs(),
                                     .name = "actor " + std::to_string(options_.id),
                                     .socket = socket});
  std::shared_ptr<control::Guard> guard;
  if (options_.door) {
    control::AllowList callers{{}};
    callers.add(options_.door->callers, "callers", control::ClientRole::own_jobs);
    guard = control::Guard::open(process_->io(), context_, options_.door->own, callers);
  }
  server_ = std::make_unique<CallServer>(
      process_->io(),
      CallServerOptions{options_.endpoint, options_.blob_endpoint, options_.ticket,
                        options_.insecure, context_, guard},
      process_->blobs(), exchange_,
      [this](std::vector<ReadyCall> ready) { mailbox_.put_all(ready); });
  const int code = process_->run(
      {.on_ready = {},
       .on_message = [this](const wire::Header& header,
                            std::span<const std::byte> payload) { on_message(header, payload); },
       .on_stop = [this] { leave(); },
       .progress = [this] { return progress_.load(std::memory_order_relaxed); }});
  return code;
}

void UserHost::leave() {
  mailbox_.close();
  server_->close();
  exchange_->close(
      {ErrorCode::lost, "[actor] the process of actor " + std::to_string(id()) + " leaves"});
}

void UserHost::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  if (exchange_->on_message(header, payload)) return;
  // Told twice: the constructor answers the first.
  const bool again = worker_.joinable() && header.correlation == create_header_.correlation;
  if (header.kind == wire::Kind::create_actor && again) return;
  if (header.kind == wire::Kind::create_actor && !worker_.joinable()) {
    create_ = wire::decode<wire::CreateActor>(payload);
    create_header_ = header;
    gpus_.assign(create_.gpus.begin(), create_.gpus.end());
    worker_ = std::thread([this] { work(); });
    return;
  }
  if (header.is_request()) {
    process_->connection().reply(header, wire::Failure{wire::FailureCode::protocol,
                                                       "[actor] " + wire::to_string(header.kind) +
                                                           " is not for a user's actor"});
  }
}

void UserHost::make_object() {
  plugin_ = std::make_unique<Plugin>(options_.plugin);
  class_ = plugin_->find(create_.class_name);
  if (!class_) {
    throw std::runtime_error("[plugin] " + options_.plugin + ": has no class " +
                             create_.class_name);
  }
  if (class_->types != create_.types) {
    throw ValueError(create_.class_name + " is made from (" + class_->arguments +
                     "), the arguments are of other types");
  }
  for (std::uint32_t i = 0; i < class_->method_count; ++i)
    method_index_[class_->methods[i].name] = i;
  ValueReader in(create_.arguments, exchange_);
  object_.reset(class_->create(*this, in));
}

void UserHost::work() {
  using wire::FailureCode;
  doing_.begin("constructor");
  std::optional<wire::Failure> failure;
  try {
    make_object();
  } catch (const ValueError& error) {
    failure = {FailureCode::bad_request, short_text(error)};
  } catch (...) {
    failure = {FailureCode::exception, create_.class_name + ": " + thrown()};
  }
  doing_.end();
  process_->post([this, failure](control::Connection& connection) {
    if (failure) {
      connection.reply(create_header_, *failure);
    } else {
      connection.reply(create_header_,
                       wire::ActorCreated{server_->endpoint(), server_->blob_endpoint()});
    }
  });
  if (failure) return;
  for (;;) {
    // This thread reads its calls itself if it can, which saves a wake-up for each call.
    const auto ready = [this] { return mailbox_.ready(); };
    if (!ready()) process_->loop()->run_until(ready, control::SharedLoop::Clock::time_point::max());
    const auto call = mailbox_.take();
    if (!call) return;
    answer(call->caller, carry_out(*call));
  }
}

wire::CallResult UserHost::carry_out(const ReadyCall& call) {
  wire::CallResult result;
  result.id = call.id;
  const auto refuse = [&](wire::CallEnd end, std::string why) {
    result.end = end;
    result.bytes = std::move(why);
    return result;
  };
  if (control::Clock::now() > call.until)
    return refuse(wire::CallEnd::timeout, "its deadline passed before it began; it never ran");
  const auto found = method_index_.find(call.method);
  if (found == method_index_.end()) {
    return refuse(wire::CallEnd::bad_request,
                  create_.class_name + " has no method \"" + call.method + "\"");
  }
  const auto& method = class_->methods[found->second];
  if (!call.text && call.types != method.types) {
    return refuse(wire::CallEnd::bad_request, "takes (" + std::string(method.arguments) +
                                                  ") and gives " + method.result +
                                                  ", the call has other types");
  }
  std::string converted;
  try {
    if (call.text) converted = arguments_from_json(method.arguments, call.arguments);
  } catch (const std::exception& error) {
    return refuse(wire::CallEnd::bad_request, short_text(error));
  }
  try {
    ValueReader in(call.text ? converted : call.arguments, exchange_);
    ValueWriter out;
    {
      const Running running(*this, call.method);
      object_->invoke(found->second, in, out);
    }
    result.bytes = out.take();
    if (call.text) {
      ValueWriter text;
      Value<std::string>::write(text, json_from_result(method.result, result.bytes));
      result.bytes = text.take();
    }
    return result;
  } catch (const ValueError& error) {
    return refuse(wire::CallEnd::bad_request,
                  "takes (" + std::string(method.arguments) + "): " + short_text(error));
  } catch (...) {
    return refuse(wire::CallEnd::exception, thrown());
  }
}

void UserHost::answer(control::PeerId caller, wire::CallResult result) {
  bool first = false;
  {
    std::lock_guard lock(answers_mutex_);
    first = answers_.empty();
    answers_.emplace_back(caller, std::move(result));
  }
  if (!first) return;
  const auto send = [this] {
    if (!process_->stopping()) send_answers();
  };
  // Answers that are ready before the control thread gets to this are sent together.
  if (mailbox_.ready()) return process_->loop()->post(send);
  process_->loop()->dispatch(send);
}

void UserHost::send_answers() {
  std::vector<std::pair<control::PeerId, wire::CallResult>> due;
  {
    std::lock_guard lock(answers_mutex_);
    due.swap(answers_);
  }
  server_->answer(std::move(due));
}

}  // namespace troupe::runtime
