#include "transport/control/connection.h"

#include "transport/control/connection_impl.h"

namespace troupe::control {

Connection::Connection(boost::asio::io_context& io, ConnectionOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}
Connection::~Connection() {
  impl_->abandon();
}

void Connection::start(std::function<void(const wire::Welcome&)> on_welcome,
                       std::function<void(const wire::Failure&)> on_failed) {
  impl_->on_welcome = std::move(on_welcome);
  impl_->on_failed = std::move(on_failed);
  impl_->start();
}
void Connection::on_message(
    std::function<void(const wire::Header&, std::span<const std::byte>)> handler) {
  impl_->on_message = std::move(handler);
}
void Connection::on_lost(std::function<void(const Loss&)> handler) {
  impl_->on_lost = std::move(handler);
}
void Connection::on_gap(std::function<void(std::uint64_t missing)> handler) {
  impl_->on_gap = std::move(handler);
}
void Connection::close(const std::string& reason, wire::LinkEnd end) {
  impl_->close(reason, end);
}

bool Connection::connected() const {
  return impl_->state == Impl::State::up;
}
PeerId Connection::id() const {
  return impl_->id;
}
std::uint64_t Connection::incarnation() const {
  return impl_->options.incarnation;
}
const std::string& Connection::secret() const {
  return impl_->secret;
}
const std::string& Connection::endpoint() const {
  return impl_->options.endpoint;
}
const Counters& Connection::counters() const {
  return impl_->counters();
}
void Connection::set_progress(std::uint64_t progress) {
  impl_->set_progress(progress);
}

bool Connection::send_frame(std::string frame) {
  return impl_->send_frame(kServer, std::move(frame));
}
void Connection::request_frame(std::string frame, Milliseconds deadline, ReplyHandler handler) {
  impl_->request_frame(kServer, std::move(frame), deadline, std::move(handler));
}

}  // namespace troupe::control
