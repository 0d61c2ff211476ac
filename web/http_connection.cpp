#include "web/http_connection.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <optional>
#include <vector>

#include "base/format.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::seconds;

constexpr std::uint32_t kLongestHeader = 16 << 10;
constexpr std::size_t kReadAtOnce = 64 << 10;
constexpr int kAskKernelEvery = 5;  // seconds
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr seconds kHeaderPatience{10};  // until a request's beginning is here
constexpr seconds kIdlePatience{75};    // between two requests of a connection
constexpr seconds kBodyPatience{30};
constexpr seconds kWritePatience{30};
constexpr seconds kLingerPatience{2};
constexpr seconds kHeartbeatAfter{15};
constexpr std::size_t kSlowestBytesPerSecond = 32 << 10;  // of a long body or answer
constexpr std::size_t kDropAbove = 256 << 10;             // bytes that wait for a slow reader
constexpr std::size_t kCutOffAbove = 256 << 20;

seconds patience_for(std::size_t bytes, seconds least) {
  return least + seconds(bytes / kSlowestBytesPerSecond);
}

/// Returns the error in the fields that say where a request ends and whom it is for, which a proxy
/// in front may have read otherwise; nothing if there is none. Sources: RFC 9112, 3.2, 6.1 and 6.3;
/// RFC 9110, 10.1.1 and 15.5.16.
std::optional<ApiError> wrong_frame(const http::request_header<>& head) {
  const auto wrong = [](int status, const std::string& why) {
    return ApiError(status, ErrorCode::bad_request, why);
  };
  const auto hosts = head.count(http::field::host);
  if (head.version() >= 11 && (hosts == 0 || head[http::field::host].empty()))
    return wrong(400, "the request names no Host");
  if (hosts > 1) return wrong(400, "the request names more than one Host");
  if (head[http::field::host].find_first_of(" \t,/@?#\\") != beast::string_view::npos)
    return wrong(400, "the request's Host is none");
  const auto lengths = head.count(http::field::content_length);
  const auto length = head[http::field::content_length];
  if (lengths > 1 || length.find_first_not_of("0123456789") != beast::string_view::npos)
    return wrong(400, "Content-Length is not one whole number");
  if (const auto codings = head.count(http::field::transfer_encoding)) {
    if (head.version() < 11) return wrong(400, "HTTP/1.0 has no Transfer-Encoding");
    if (lengths > 0) return wrong(400, "Content-Length does not go with Transfer-Encoding");
    if (codings > 1 || !beast::iequals(head[http::field::transfer_encoding], "chunked"))
      return wrong(501, "of transfer codings chunked alone is taken");
  }
  const auto coding = head[http::field::content_encoding];
  if (!coding.empty() && !beast::iequals(coding, "identity"))
    return wrong(415, "Content-Encoding is not taken: send the body as it is");
  const auto expectation = head[http::field::expect];
  if (!expectation.empty() && !beast::iequals(expectation, "100-continue"))
    return wrong(417, "of expectations 100-continue alone is met");
  return std::nullopt;
}

tcp::socket& socket_of(tcp::socket& stream) {
  return stream;
}
tcp::socket& socket_of(ssl::stream<tcp::socket>& stream) {
  return stream.next_layer();
}

/// One connection: one request after the other.
template <class Stream>
class HttpConnection final : public ServerConnection,
                             public std::enable_shared_from_this<HttpConnection<Stream>> {
 public:
  HttpConnection(Stream stream, std::shared_ptr<ServerLimits> limits)
      : stream_(std::move(stream)),
        timer_(socket_of(stream_).get_executor()),
        limits_(std::move(limits)),
        buffer_(kReadAtOnce) {
    error_code ignored;
    const auto from = socket_of(stream_).remote_endpoint(ignored);
    if (!ignored) peer = from.address().to_string();
    this->owner = limits_->join(owner_of(from.address()));
    limits_->all.insert(this);
    ++limits_->counts.connections;
  }
  ~HttpConnection() override { leave(); }

  void start() {
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      wait_for_request(kHeaderPatience);
    } else {
      wait_in_line();
      arm(kHeaderPatience);
      stream_.async_handshake(ssl::stream_base::server,
                              [self = this->shared_from_this()](const error_code& error) {
                                if (error || self->state_ == State::closed) return self->close();
                                self->wait_for_request(kHeaderPatience);
                              });
    }
  }

  bool answers() const override {
    return state_ == State::streaming || state_ == State::writing || state_ == State::lingering;
  }

  void close() override {
    if (state_ == State::closed) return;
    leave();
    error_code ignored;
    timer_.cancel();
    socket_of(stream_).close(ignored);
    if (auto gone = std::exchange(gone_, nullptr)) gone();
  }

 private:
  enum class State { waiting, reading, serving, writing, streaming, lingering, closed };

  /// Answers one request, from wherever it is held.
  class Turn final : public Reply {
   public:
    Turn(std::shared_ptr<HttpConnection> connection, std::uint64_t number)
        : connection_(std::move(connection)), number_(number) {}
    /// Ends the turn. The object may be the last that holds the connection, on whatever thread.
    ~Turn() override {
      const auto executor = connection_->timer_.get_executor();
      asio::post(executor, [connection = std::move(connection_), number = number_] {
        if (connection->turn_ == number && connection->state_ == State::serving)
          connection->send({.status = 500,
                            .body = json_text(to_json(ApiError(500, ErrorCode::failed,
                                                               "the request was not answered")))});
      });
    }
    void send(Response response) override {
      if (is_mine(State::serving)) connection_->send(std::move(response));
    }
    void begin(Response header, std::string heartbeat) override {
      if (is_mine(State::serving)) connection_->begin(std::move(header), std::move(heartbeat));
    }
    void write(Piece piece, bool may_drop) override {
      if (is_mine(State::streaming)) connection_->write(std::move(piece), may_drop);
    }
    void end() override {
      if (is_mine(State::streaming)) connection_->end();
    }
    void on_gone(std::function<void()> action) override {
      if (connection_->turn_ == number_ && connection_->state_ != State::closed) {
        connection_->gone_ = std::move(action);
      } else if (connection_->state_ == State::closed && connection_->turn_ == number_) {
        action();
      }
    }

   private:
    bool is_mine(State state) const {
      return connection_->turn_ == number_ && connection_->state_ == state;
    }
    std::shared_ptr<HttpConnection> connection_;
    std::uint64_t number_;
  };

  /// Gives back all that it holds of the server.
  void leave() {
    if (state_ == State::closed) return;
    if (state_ == State::streaming) --limits_->counts.streams;
    state_ = State::closed;
    --limits_->counts.connections;
    limits_->all.erase(this);
    limits_->waiting.erase(wait_number_);
    give_back_body();
    limits_->unread_bytes -= std::exchange(this->unread_bytes, 0);
    limits_->leave(std::exchange(this->owner, nullptr));
  }

  void give_back_body() { limits_->count_body(this->owner, std::exchange(this->body_bytes, 0), 0); }

  /// The connection is that key's from now on; "" = its address'.
  void belongs_to(const std::string& key) {
    if (key.empty()) return;
    const auto before = this->owner;
    this->owner = limits_->join("key " + key);
    limits_->leave(before);
  }

  void wait_in_line() {
    wait_number_ = ++limits_->last_wait;
    limits_->waiting[wait_number_] = this;
  }

  void arm(seconds patience) {
    timer_.expires_after(patience);
    timer_.async_wait([self = this->shared_from_this()](const error_code& error) {
      if (error || self->state_ == State::closed) return;
      if (self->timer_.expiry() <= std::chrono::steady_clock::now()) self->too_late();
    });
  }

  void too_late() {
    if (state_ == State::streaming && !writing_) return write(heartbeat_, false);
    if (state_ != State::waiting && state_ != State::lingering) ++limits_->counts.cut_off;
    close();
  }

  /// Reads on, to see the next request come or the client go.
  void look() {
    if (looking_ || state_ == State::closed) return;
    looking_ = true;
    stream_.async_read_some(buffer_.prepare(4096), [self = this->shared_from_this()](
                                                       const error_code& error, std::size_t bytes) {
      self->looking_ = false;
      if (self->state_ == State::closed) return;
      if (error == asio::error::eof) return self->on_end_of_requests();
      if (error) return self->close();
      self->buffer_.commit(bytes);
      if (self->state_ == State::waiting) return self->read_head();
      if (self->state_ == State::lingering) {
        self->buffer_.consume(self->buffer_.size());
        self->look();
      }
    });
  }

  /// Looks whether a client that sends no more still reads, or has gone altogether: only what is
  /// written to it shows that. Over TLS its end is the end of all.
  void on_end_of_requests() {
    keep_alive_ = false;
    const bool has_request = state_ == State::serving || answers();
    if (!std::is_same_v<Stream, tcp::socket> || !has_request || state_ == State::lingering)
      return close();
    // Whoever has gone resets the connection at the first byte.
    socket_of(stream_).async_wait(tcp::socket::wait_error,
                                  [self = this->shared_from_this()](const error_code& error) {
                                    if (!error && self->state_ != State::closed) self->close();
                                  });
    if (state_ == State::streaming) return write(heartbeat_, false);
    if (state_ != State::serving) return;
    if (version_ < 11) return ask_kernel();
    // Nothing else is being written, and every client of HTTP/1.1 reads on after that.
    const auto wrote = ::send(socket_of(stream_).native_handle(), kContinue.data(),
                              kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (wrote != static_cast<ssize_t>(kContinue.size())) close();
  }

  /// Has the kernel probe the client's, which remembers a connection that its program has left for
  /// a minute only.
  void ask_kernel() {
    auto& socket = socket_of(stream_);
    error_code ignored;
    socket.set_option(asio::socket_base::keep_alive(true), ignored);
    for (const int option : {TCP_KEEPIDLE, TCP_KEEPINTVL})
      setsockopt(socket.native_handle(), IPPROTO_TCP, option, &kAskKernelEvery,
                 sizeof kAskKernelEvery);
  }

  void wait_for_request(seconds patience) {
    state_ = State::waiting;
    limits_->waiting.erase(wait_number_);
    wait_in_line();
    if (!looking_ && buffer_.size() > 0) return read_head();
    arm(patience);
    look();
  }

  void read_head() {
    state_ = State::reading;
    arm(kHeaderPatience);
    head_parser_.emplace();
    head_parser_->header_limit(kLongestHeader);
    // None at all would be below every length in Beast of Boost 1.74.
    head_parser_->body_limit(std::numeric_limits<std::uint64_t>::max());
    http::async_read_header(
        stream_, buffer_, *head_parser_,
        [self = this->shared_from_this()](const error_code& error, std::size_t) {
          if (self->state_ == State::closed) return;
          if (error) return self->bad_head(error);
          self->on_head();
        });
  }

  void bad_head(const error_code& error) {
    static const error_code kOfHttp = make_error_code(http::error::bad_method);
    if (error.category() != kOfHttp.category() || error == http::error::end_of_stream ||
        error == http::error::partial_message)
      return close();
    keep_alive_ = false;
    version_ = 11;
    is_head_ = false;
    state_ = State::serving;
    const bool long_one = error == http::error::header_limit;
    refuse(long_one ? 431 : 400, long_one ? "the header has more than 16 KiB"
                                          : "this is no HTTP request: " + error.message());
  }

  void refuse(int status, const std::string& what) {
    send({.status = status,
          .body = json_text(to_json(ApiError(status, ErrorCode::bad_request, what)))});
  }

  static Response overloaded(const std::string& what) {
    return {.status = 503,
            .body = json_text(to_json(ApiError(503, ErrorCode::overloaded, what))),
            .fields = {{"Retry-After", "1"}}};
  }

  /// Returns the beginning of the request that was read.
  RequestHead request_head() const {
    const auto& message = head_parser_->get();
    RequestHead head;
    head.method = std::string(message.method_string());
    head.peer = peer;
    head.secure = !std::is_same_v<Stream, tcp::socket>;
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& letter : name)
        if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter | 0x20);
      head.fields[name] = std::string(field.value());
    }
    return head;
  }

  void on_head() {
    this->turn_began = ++limits_->last_turn;
    const auto& message = head_parser_->get();
    version_ = message.version();
    is_head_ = message.method() == http::verb::head;
    keep_alive_ = message.keep_alive();
    RequestHead head = request_head();
    const auto frame = wrong_frame(message);
    const auto length = head_parser_->content_length();
    const bool has_body = head_parser_->chunked() || (length && *length > 0);
    // Whoever is refused before its body was read is not read on.
    const bool keeps_alive = std::exchange(keep_alive_, keep_alive_ && !has_body);
    state_ = State::serving;
    if (frame) {
      keep_alive_ = false;
      return refuse(frame->status, frame->what());
    }
    if (!parse_target(std::string(message.target()), head))
      return refuse(400, "the request's target is no path");
    const bool expects = !head.field("expect").empty();
    auto admission = limits_->handler.admit(std::move(head));
    limits_->waiting.erase(wait_number_);
    if (admission.refusal) {
      // It goes before those that are admitted where there is no room, but after who only waits.
      wait_in_line();
      return in_turn(
          [this, refusal = std::move(*admission.refusal)]() mutable { send(std::move(refusal)); });
    }
    serve_ = std::move(admission.serve);
    belongs_to(admission.key);
    if (has_body) return begin_body(admission.most_body, keeps_alive, expects);
    keep_alive_ = keeps_alive;
    serve({});
  }

  void begin_body(std::size_t most, bool keeps_alive, bool expects) {
    const auto length = head_parser_->content_length();
    if (most == 0) return refuse(400, "this request has no body");
    if (length && *length > most) return too_large(most);
    const std::size_t bytes = length ? static_cast<std::size_t>(*length) : most;
    keep_alive_ = keeps_alive;
    state_ = State::reading;
    body_parser_.emplace(std::move(*head_parser_));
    body_parser_->body_limit(most);
    body_parser_->eager(true);
    arm(patience_for(bytes, kBodyPatience));
    if (!expects) return read_body(most);
    asio::async_write(
        stream_, asio::buffer(kContinue),
        [self = this->shared_from_this(), most](const error_code& error, std::size_t) {
          if (self->state_ == State::closed) return;
          if (error) return self->close();
          self->read_body(most);
        });
  }

  void too_large(std::size_t most) {
    keep_alive_ = false;
    refuse(413, fmt::format("the body has more than {} bytes", most));
  }

  void read_body(std::size_t most) {
    http::async_read_some(
        stream_, buffer_, *body_parser_,
        [self = this->shared_from_this(), most](const error_code& error, std::size_t) {
          if (self->state_ != State::closed) self->on_body(error, most);
        });
  }

  void on_body(const error_code& error, std::size_t most) {
    static const error_code kOfHttp = make_error_code(http::error::bad_chunk);
    if (error && (error.category() != kOfHttp.category() || error == http::error::partial_message ||
                  error == http::error::end_of_stream))
      return close();
    if (error) state_ = State::serving;
    if (error == http::error::body_limit) return too_large(most);
    if (error) {
      keep_alive_ = false;
      return refuse(400, "the body is malformed: " + error.message());
    }
    const auto& options = limits_->options;
    const std::size_t bytes = body_parser_->get().body().size() * options.memory_per_body_byte;
    const std::size_t more = bytes - this->body_bytes;
    const bool fits_own = limits_->has_body_room(this->owner->second, more);
    if (!fits_own || !limits_->make_room(this, more, limits_->body_bytes, options.most_body_bytes,
                                         &ServerConnection::body_bytes)) {
      state_ = State::serving;
      keep_alive_ = false;
      body_parser_.reset();
      give_back_body();
      return send(overloaded(fits_own ? "there is no room for the body: try again"
                                      : "requests of this key or address that are not done with "
                                        "leave no room for the body: try again"));
    }
    limits_->count_body(this->owner, std::exchange(this->body_bytes, bytes), bytes);
    if (!body_parser_->is_done()) return read_body(most);
    serve(std::move(body_parser_->get().body()));
  }

  void serve(std::string body) {
    state_ = State::serving;
    if (buffer_.size() == 0) look();
    body_parser_.reset();
    auto memory = count_memory(timer_.get_executor(), limits_, this->owner->first,
                               std::exchange(this->body_bytes, 0));
    in_turn([this, serve = std::exchange(serve_, nullptr), body = std::move(body),
             memory = std::move(memory)]() mutable {
      serve(std::move(body), std::move(memory),
            std::make_shared<Turn>(this->shared_from_this(), turn_));
    });
  }

  /// Calls `serve` when it is the owner's turn, unless the connection has ended by then.
  void in_turn(std::function<void()> serve) {
    state_ = State::serving;
    timer_.cancel();
    limits_->turns->add(this->owner->first,
                        [self = this->shared_from_this(), serve = std::move(serve)] {
                          if (self->state_ == State::serving) serve();
                        });
  }

  template <class Message>
  void add_fields(Message& message, const Response& response) {
    message.result(static_cast<unsigned>(response.status));
    message.version(version_);
    message.set(http::field::server, "troupe");
    message.set("X-Content-Type-Options", "nosniff");
    if (!response.type.empty()) message.set(http::field::content_type, response.type);
    for (const auto& [name, value] : response.fields)
      message.insert(name, value);
  }

  void send(Response response) {
    state_ = State::writing;
    gone_ = nullptr;
    const std::size_t bytes = is_head_ ? 0 : response.body.size();
    if (!has_room_for(bytes))
      response = overloaded("too many answers wait for their readers: try again");
    this->unread_bytes = is_head_ ? 0 : response.body.size();
    limits_->unread_bytes += this->unread_bytes;
    arm(patience_for(response.body.size(), kWritePatience));
    const auto written = [self = this->shared_from_this()](const error_code& error, std::size_t) {
      if (self->state_ == State::closed) return;
      if (error) return self->close();
      self->answer_.reset();
      self->head_answer_.reset();
      self->finish_turn();
    };
    if (is_head_) {
      head_answer_.emplace();
      add_fields(*head_answer_, response);
      head_answer_->content_length(response.body.size());
      head_answer_->keep_alive(keep_alive_);
      head_serializer_.emplace(*head_answer_);
      return http::async_write_header(stream_, *head_serializer_, written);
    }
    answer_.emplace();
    add_fields(*answer_, response);
    answer_->body() = std::move(response.body);
    answer_->keep_alive(keep_alive_);
    answer_->prepare_payload();
    http::async_write(stream_, *answer_, written);
  }

  bool has_room_for(std::size_t bytes) {
    return limits_->make_room(this, bytes, limits_->unread_bytes,
                              limits_->options.most_unread_bytes, &ServerConnection::unread_bytes);
  }

  void begin(Response header, std::string heartbeat) {
    if (is_head_) return send({.status = header.status, .type = header.type, .body = {}});
    state_ = State::streaming;
    ++limits_->counts.streams;
    heartbeat_ = piece(std::move(heartbeat));
    ending_ = false;
    writing_ = true;
    head_answer_.emplace();
    add_fields(*head_answer_, header);
    if (version_ >= 11) {
      head_answer_->chunked(true);
    } else {
      keep_alive_ = false;  // the end of the connection is the end of the stream
    }
    head_answer_->keep_alive(keep_alive_);
    head_serializer_.emplace(*head_answer_);
    arm(kWritePatience);
    http::async_write_header(stream_, *head_serializer_,
                             [self = this->shared_from_this()](
                                 const error_code& error, std::size_t) { self->written(error); });
  }

  void write(Piece piece, bool may_drop) {
    if (ending_ || piece->empty()) return;
    const std::size_t after = this->unread_bytes + piece->size();
    const std::size_t all = limits_->unread_bytes + piece->size();
    const std::size_t most = limits_->options.most_unread_bytes;
    if (may_drop && this->unread_bytes > 0 && (after > kDropAbove || all > most / 2)) return;
    if (after > kCutOffAbove || !has_room_for(piece->size())) {
      ++limits_->counts.cut_off;
      return close();
    }
    this->unread_bytes = after;
    limits_->unread_bytes += piece->size();
    pending_.push_back(std::move(piece));
    if (!writing_) flush();
  }

  void end() {
    ending_ = true;
    gone_ = nullptr;
    if (!writing_) flush();
  }

  /// Writes what waits, as one chunk; or, at the end, the last one.
  void flush() {
    writing_ = true;
    sending_ = std::exchange(pending_, {});
    std::vector<asio::const_buffer> buffers;
    for (const auto& piece : sending_)
      buffers.push_back(asio::buffer(*piece));
    const auto done = [self = this->shared_from_this()](const error_code& error, std::size_t) {
      self->written(error);
    };
    arm(patience_for(asio::buffer_size(buffers), kWritePatience));
    if (buffers.empty()) {
      ended_ = true;
      if (version_ < 11) return written({});
      return asio::async_write(stream_, http::make_chunk_last(), done);
    }
    if (version_ >= 11) {
      asio::async_write(stream_, http::make_chunk(std::move(buffers)), done);
    } else {
      asio::async_write(stream_, std::move(buffers), done);
    }
  }

  void written(const error_code& error) {
    if (state_ != State::streaming) return;
    if (error) return close();
    for (const auto& piece : std::exchange(sending_, {})) {
      limits_->unread_bytes -= std::min(this->unread_bytes, piece->size());
      this->unread_bytes -= std::min(this->unread_bytes, piece->size());
    }
    if (std::exchange(ended_, false)) {
      --limits_->counts.streams;
      state_ = State::writing;
      return finish_turn();
    }
    if (!pending_.empty() || ending_) return flush();
    writing_ = false;
    arm(kHeartbeatAfter);
  }

  void finish_turn() {
    ++turn_;
    // Who asked for a stream's header alone (HEAD) does not wait for its end.
    if (auto gone = std::exchange(gone_, nullptr)) gone();
    limits_->unread_bytes -= std::exchange(this->unread_bytes, 0);
    if (keep_alive_) return wait_for_request(kIdlePatience);
    state_ = State::lingering;
    arm(kLingerPatience);
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      error_code ignored;
      stream_.shutdown(tcp::socket::shutdown_send, ignored);
      buffer_.consume(buffer_.size());
      look();
    } else {
      stream_.async_shutdown(
          [self = this->shared_from_this()](const error_code&) { self->close(); });
    }
  }

  Stream stream_;
  asio::steady_timer timer_;
  std::shared_ptr<ServerLimits> limits_;
  beast::flat_buffer buffer_;
  State state_ = State::waiting;
  std::uint64_t wait_number_ = 0;
  std::uint64_t turn_ = 0;
  bool looking_ = false;
  bool keep_alive_ = false;
  bool is_head_ = false;
  unsigned version_ = 11;
  std::optional<http::request_parser<http::empty_body>> head_parser_;
  std::optional<http::request_parser<http::string_body>> body_parser_;
  std::function<void(std::string, RequestMemoryPtr, const ReplyPtr&)> serve_;
  std::function<void()> gone_;
  std::optional<http::response<http::string_body>> answer_;
  std::optional<http::response<http::empty_body>> head_answer_;
  std::optional<http::response_serializer<http::empty_body>> head_serializer_;
  // Of a stream.
  Piece heartbeat_;
  std::vector<Piece> pending_;
  std::vector<Piece> sending_;  // while they are written
  bool writing_ = false;
  bool ending_ = false;
  bool ended_ = false;  // the last chunk is being written
};

}  // namespace

void begin_connection(tcp::socket socket, ssl::context* tls,
                      const std::shared_ptr<ServerLimits>& limits) {
  if (!tls)
    return std::make_shared<HttpConnection<tcp::socket>>(std::move(socket), limits)->start();
  std::make_shared<HttpConnection<ssl::stream<tcp::socket>>>(
      ssl::stream<tcp::socket>(std::move(socket), *tls), limits)
      ->start();
}

}  // namespace troupe::web
