#include "transport/calls/call_connection.h"

#include <boost/asio/post.hpp>

#include "base/format.h"
#include "transport/calls/errors.h"
#include "transport/calls/exchange.h"

namespace troupe::calls {
namespace {

constexpr control::Milliseconds kFindDeadline{60'000};
constexpr control::Milliseconds kConnectDeadline{5'000};

}  // namespace

CallConnection::CallConnection(Exchange& exchange, std::uint64_t actor)
    : exchange_(exchange), actor_(actor), name_(fmt::format("actor {}", actor)) {}
CallConnection::~CallConnection() = default;

std::string CallConnection::name() const {
  return name_;
}

void CallConnection::resolve() {
  if (std::exchange(resolving_, true)) return;
  exchange_.request<wire::ActorAddress>(
      wire::FindActor{actor_, ""}, kFindDeadline,
      [line = shared_from_this()](Result<wire::ActorAddress> found) {
        line->resolving_ = false;
        if (line->closed_) return;
        if (!found) return line->fail_waiting(found.error());
        line->address_ = std::move(found.value());
        line->name_ = fmt::format(
            "{}{} (actor {})", line->address_->class_name,
            line->address_->name.empty() ? "" : " \"" + line->address_->name + "\"", line->actor_);
        line->pump();
      });
}

void CallConnection::connect() {
  up_ = false;
  try {
    auto options =
        exchange_.connection_options(address_->endpoint, address_->ticket, address_->keys);
    options.welcome_deadline = kConnectDeadline;
    connection_ = std::make_unique<control::Connection>(exchange_.io(), std::move(options));
  } catch (const std::exception& error) {
    return fail_waiting({ErrorCode::lost, name() + ": " + error.what()});
  }
  const std::weak_ptr<CallConnection> weak = weak_from_this();
  connection_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
    on_message(header, payload);
  });
  // The controller says how an actor ended; a link that breaks for another reason has lost answers.
  const auto broken = [this](const control::Loss& loss) {
    fail_sent({ErrorCode::lost, name() + ": the link to it broke: " + loss.why});
    hang_up();
    pump();
  };
  connection_->on_lost(broken);
  connection_->on_gap([this, weak, broken](std::uint64_t missing) {
    boost::asio::post(exchange_.io(), [weak, broken, missing] {
      if (weak.lock()) broken({wire::LinkEnd::gap, fmt::format("{} messages never came", missing)});
    });
  });
  connection_->start(
      [this](const wire::Welcome& welcome) {
        up_ = true;
        exchange_.link_stands(address_->blob_endpoint,
                              {connection_->incarnation(), welcome.secret});
        pump();
      },
      [this](const wire::Failure& failure) {
        // It may have ended since the controller was asked, and the word of it be on its way.
        hang_up();
        fail_waiting({ErrorCode::lost, name() + ": no link to it: " + failure.what});
      });
}

void CallConnection::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.kind != wire::Kind::call_results) {
    throw wire::WireError(wire::WireErrc::wrong_kind, "[call] an actor answers with results only");
  }
  auto message = wire::decode<wire::CallResults>(payload);
  const auto self = shared_from_this();
  for (auto& result : message.results)
    settle(result);
  pump();
}

void CallConnection::settle(wire::CallResult& result) {
  const auto found = sent_.find(result.id);
  if (found == sent_.end()) {
    if (result.end == wire::CallEnd::held) to_release_.push_back(result.blob);
    return;
  }
  Sent sent = std::move(found->second);
  sent_.erase(found);
  forget(sent);
  const auto called = [&] { return name() + "." + sent.method; };
  using enum wire::CallEnd;
  switch (result.end) {
    case value:
      sent.state->finish({.bytes = std::make_shared<const std::string>(std::move(result.bytes))});
      return;
    case held:
      sent.state->finish({.remote = std::make_shared<HeldValue>(
                              exchange_.weak(),
                              Holder{actor_,
                                     address_->incarnation,
                                     {address_->blob_endpoint, address_->ticket, address_->keys}},
                              result.blob, result.blob_bytes)});
      return;
    case exception:
      return sent.state->finish({.error = {ErrorCode::exception, called() + ": " + result.bytes}});
    case bad_request: {
      const std::string as = sent.row ? "; it was called as " + sent.row->signature() : "";
      return sent.state->finish(
          {.error = {ErrorCode::bad_request, called() + ": " + result.bytes + as}});
    }
    case timeout:
      return sent.state->finish({.error = {ErrorCode::timeout, called() + ": " + result.bytes}});
    case failed:
      return sent.state->finish({.error = {ErrorCode::failed, called() + ": " + result.bytes}});
  }
}

void CallConnection::forget(Sent& sent) {
  sent_bytes_ -= std::min(sent_bytes_, sent.bytes);
  for (const auto blob : sent.own)
    exchange_.blobs().remove(blob);
  sent.own.clear();
  sent.borrowed.clear();
}

void CallConnection::expire(std::uint64_t call) {
  const auto self = shared_from_this();
  if (const auto found = sent_.find(call); found != sent_.end()) {
    Sent sent = std::move(found->second);
    sent_.erase(found);
    forget(sent);
    sent.state->finish(
        {.error = {ErrorCode::timeout, name() + "." + sent.method +
                                           ": no answer before its deadline; it may still run"}});
    return pump();
  }
  if (waiting_.empty() || call < waiting_.front().id) return;
  const auto place = call - waiting_.front().id;
  if (place >= waiting_.size()) return;
  auto& waiting = waiting_[place];
  waiting.state->finish(
      {.error = {ErrorCode::timeout, name() + "." + waiting.request.method +
                                         ": was not sent before its deadline and will never run"}});
  if (place == 0) pump();
}

bool CallConnection::awaits(std::uint64_t call) const {
  return sent_.contains(call) || (!waiting_.empty() && call >= waiting_.front().id &&
                                  call - waiting_.front().id < waiting_.size());
}

void CallConnection::died(const wire::ActorDied& death) {
  const auto self = shared_from_this();
  const bool mine = address_ && address_->incarnation == death.incarnation;
  if (!mine && death.restarting) return;
  const std::string what = name() + (death.restarting ? " is restarting: " : " has ended: ");
  if (mine) {
    fail_sent({death.restarting ? ErrorCode::restarting : ErrorCode::died, what + death.cause});
    hang_up();
  }
  if (!death.restarting) return fail_waiting({ErrorCode::died, what + death.cause});
  pump();
}

void CallConnection::release(std::uint64_t incarnation, control::BlobId blob) {
  if (closed_ || !address_ || address_->incarnation != incarnation) return;
  to_release_.push_back(blob);
  if (to_release_.size() == 1) exchange_.pump_later(actor_);
}

void CallConnection::fail_sent(const Error& why) {
  auto sent = std::exchange(sent_, {});
  for (auto& [id, call] : sent) {
    forget(call);
    call.state->finish({.error = {why.code, why.what + " (during " + call.method + ")"}});
  }
  sent_bytes_ = 0;
}

void CallConnection::fail_waiting(const Error& why) {
  auto waiting = std::exchange(waiting_, {});
  waiting_bytes_ = 0;
  for (auto& call : waiting)
    call.state->finish({.error = why});
}

void CallConnection::hang_up() {
  if (up_ && address_) exchange_.link_ended(address_->blob_endpoint);
  up_ = false;
  address_.reset();
  to_release_.clear();
  if (!connection_) return;
  // It may be calling us: it goes when it has come back.
  connection_->on_lost({});
  boost::asio::post(exchange_.io(),
                    [gone = std::shared_ptr<control::Connection>(std::move(connection_))] {
                      gone->close("the actor has ended");
                    });
}

void CallConnection::close(const Error& why) {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  fail_sent(why);
  fail_waiting(why);
  up_ = false;
  if (connection_) connection_->close("the caller ends");
  connection_.reset();
}

}  // namespace troupe::calls
