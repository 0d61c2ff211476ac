#include "web/gateway.h"

#include <sodium.h>
#include <sys/resource.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "base/allowed_folders.h"
#include "base/format.h"
#include "base/log_line.h"
#include "base/metrics_text.h"
#include "base/numbers.h"
#include "web/api.h"
#include "web/http_server.h"
#include "web/page_files.h"

namespace troupe::web {
namespace {

constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri "
    "'none'; form-action 'none'; frame-ancestors 'none'";

ApiKeys read_keys(const std::string& path) {
  if (path.empty()) return {};
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) throw std::runtime_error("[keys] " + path + ": cannot be read");
  ApiKeys keys = ApiKeys::parse(text.str());
  if (keys.empty()) throw std::runtime_error("[keys] " + path + ": there is no key in it");
  return keys;
}

/// Raises the limit of descriptors to as many as this process may have, and returns how many
/// connections there may be: half of the descriptors at most.
std::size_t connections_for(int wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  return std::min(static_cast<std::size_t>(wanted), static_cast<std::size_t>(limit.rlim_cur / 2));
}

/// The page's file for a path: "/" is index.html, "/assets/NAME" is NAME.
const PageFile* page_file(const RequestHead& head) {
  constexpr std::string_view kAssets = "/assets/";
  const std::string path = head.path_text();
  std::string_view name = path == "/" ? std::string_view("index.html") : std::string_view();
  if (path.starts_with(kAssets)) name = std::string_view(path).substr(kAssets.size());
  for (const PageFile& file : page_files())
    if (!name.empty() && file.path == name) return &file;
  return nullptr;
}

Response page_response(const PageFile& file, const RequestHead& head) {
  const std::string tag = "\"" + std::string(file.hash.substr(0, 32)) + "\"";
  Response response{.status = 200,
                    .type = std::string(file.type),
                    .body = std::string(file.bytes),
                    .fields = {{"ETag", tag},
                               {"Cache-Control", "no-cache"},
                               {"Content-Security-Policy", kPolicy},
                               {"Cross-Origin-Resource-Policy", "same-origin"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Referrer-Policy", "no-referrer"}}};
  if (head.field("if-none-match") == tag) {
    response.status = 304;
    response.body.clear();
  }
  return response;
}

}  // namespace

/// Counts of the gateway's requests. Pure.
class HttpMetrics {
 public:
  /// A request was answered, or its stream begun. `route`: the pattern, of which there are few.
  void answered(const std::string& route, int status, double seconds);
  void write(MetricsText& out) const;

 private:
  static constexpr std::array<double, 12> kBounds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                                     1,     3,     10,   30,   100, 300};
  std::map<std::string, Histogram> seconds_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;
};

void HttpMetrics::answered(const std::string& route, int status, double seconds) {
  seconds_.try_emplace(route, kBounds).first->second.add(seconds);
  ++answers_[{route, status}];
}

void HttpMetrics::write(MetricsText& out) const {
  out.histogram("troupe_http_request_seconds",
                "From a request's beginning to its answer, or to the beginning of its stream.");
  for (const auto& [route, seconds] : seconds_)
    out.sample(seconds, {{"route", route}});
  out.counter("troupe_http_answers_total", "Requests that were answered.");
  for (const auto& [key, count] : answers_)
    out.sample(static_cast<double>(count),
               {{"route", key.first}, {"status", std::to_string(key.second)}});
}

/// Counts an answer when it is sent.
class CountedReply final : public Reply {
 public:
  CountedReply(ReplyPtr reply, HttpMetrics& metrics, std::string route)
      : reply_(std::move(reply)), metrics_(metrics), route_(std::move(route)) {}
  void send(Response response) override {
    count(response.status);
    reply_->send(std::move(response));
  }
  void begin(Response header, std::string heartbeat) override {
    count(header.status);
    reply_->begin(std::move(header), std::move(heartbeat));
  }
  void write(Piece piece, bool may_drop) override { reply_->write(std::move(piece), may_drop); }
  void end() override { reply_->end(); }
  void on_gone(std::function<void()> action) override { reply_->on_gone(std::move(action)); }

 private:
  void count(int status) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
    metrics_.answered(route_, status, took.count());
  }
  ReplyPtr reply_;
  HttpMetrics& metrics_;
  std::string route_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

class Gateway::Impl {
 public:
  explicit Impl(const GatewayOptions& options) : options_(options) {
    if (sodium_init() < 0) throw std::runtime_error("[http] libsodium does not start");
    keys_ = read_keys(options.api_keys);
    boost::system::error_code error;
    loopback_ = boost::asio::ip::make_address(options.address, error).is_loopback();
    if (!error && !loopback_ && keys_.empty() && !options.insecure) {
      throw std::runtime_error("[http] " + options.address +
                               " is reached by others: give --api-keys, or --insecure to let "
                               "everybody in who reaches the port");
    }
    ServerOptions server;
    server.address = options.address;
    server.port = static_cast<std::uint16_t>(options.port);
    server.certificate = options.tls_certificate;
    server.key = options.tls_key;
    server.most_connections = connections_for(options.max_connections);
    server_.emplace(io_, server, HttpServer::Handler{[this](RequestHead head) {
                      return admit(std::move(head));
                    }});
    const bool v6 = options.address.find(':') != std::string::npos;
    url_ = fmt::format("{}{}:{}", options.tls_certificate.empty() ? "http://" : "https://",
                       v6 ? "[" + options.address + "]" : options.address, server_->port());
    std::vector<ClusterLink::Target> targets;
    for (const auto& cluster : options.clusters)
      targets.push_back({cluster.endpoint, cluster.keys});
    const AllowedFolders are_there(options.allowed_models);
    service_.emplace(
        io_, targets,
        [this](const std::string& endpoint, const std::string& why) {
          if (options_.on_cluster) options_.on_cluster(endpoint, why);
        },
        options.allowed_models);
    api_.emplace(Api{*service_, router_, links_, clips_});
    add_cluster_routes(*api_);
    add_images_routes(*api_);
    add_jobs_routes(*api_);
    add_webui_routes(*api_);
    add_videos_routes(*api_);
    router_.add({"GET",
                 "/metrics",
                 Access::user,
                 0,
                 [this](const auto& request, const auto& reply) { metrics(*request, reply); },
                 {"cluster"}});
  }

  ~Impl() {
    server_.reset();
    service_.reset();
  }

  HttpServer::Handler::Admission admit(RequestHead head) {
    try {
      return admitted(std::move(head));
    } catch (const ApiError& error) {
      return {.most_body = 0, .serve = {}, .refusal = error_response(error)};
    }
  }

  HttpServer::Handler::Admission admitted(RequestHead head) {
    const std::string why =
        foreign(head.field("host"), head.field("origin"), head.field("sec-fetch-site"), loopback_,
                options_.allowed_hosts, keys_.empty());
    if (!why.empty()) throw ApiError(403, HttpCode::foreign_origin, why);
    auto match = router_.match(head);
    if (!match.route) return unrouted(head, match.allow);
    auto request = std::make_shared<Request>();
    request->caller = caller_of(head, match.route->access);
    check_query(*match.route, head);
    check_body(*match.route, head);
    request->head = std::move(head);
    request->params = std::move(match.params);
    return {.most_body = match.route->most_body,
            .serve =
                [this, route = match.route, request](std::string body, RequestMemoryPtr memory,
                                                     const ReplyPtr& plain) {
                  request->body = std::move(body);
                  request->memory = std::move(memory);
                  serve(*route, request,
                        std::make_shared<CountedReply>(plain, metrics_, route->path));
                },
            .refusal = {},
            .key = request->caller->name};
  }

  void serve(const Route& route, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
    try {
      route.handler(request, reply);
    } catch (const JobSought& sought) {
      service_->when_told(sought, [this, &route, request, reply] { serve(route, request, reply); });
    } catch (const ApiError& error) {
      answer_error(reply, error);
    } catch (const std::bad_alloc&) {
      answer_error(reply, {503, ErrorCode::overloaded, "out of memory"});
    } catch (const std::exception& error) {
      answer_error(reply, {500, ErrorCode::failed, error.what()});
    }
  }

  HttpServer::Handler::Admission unrouted(const RequestHead& head, const std::string& allow) const {
    const bool get = head.method == "GET" || head.method == "HEAD";
    if (const PageFile* file = page_file(head); file && get)
      return {.most_body = 0, .serve = {}, .refusal = page_response(*file, head)};
    if (allow.empty())
      throw ApiError(404, ErrorCode::not_found, "there is nothing at " + head.path_text());
    Response response = error_response(
        ApiError(405, HttpCode::not_allowed, head.path_text() + " takes " + allow + " only"));
    response.fields.emplace_back("Allow", allow);
    return {.most_body = 0, .serve = {}, .refusal = std::move(response)};
  }

  std::shared_ptr<const KeyHolder> caller_of(const RequestHead& head, Access access) const {
    static const auto kEverybody = std::make_shared<const KeyHolder>();
    static const auto kNobody =
        std::make_shared<const KeyHolder>(KeyHolder{.name = {}, .share = {}, .operate = false});
    if (keys_.empty()) return kEverybody;
    if (access == Access::open) return kNobody;
    const auto caller = keys_.find(head.field("authorization"));
    if (!caller) {
      throw ApiError(401, HttpCode::invalid_api_key,
                     head.field("authorization").empty()
                         ? "a key is needed: Authorization: Bearer KEY"
                         : "this key is not known here");
    }
    if (access == Access::operate && !caller->operate)
      throw ApiError(403, ErrorCode::refused,
                     "the key " + caller->name + " has not the role operate");
    return caller;
  }

  /// Ours, then the cluster's: of several that of ?cluster=N, from 1 on.
  void metrics(const Request& request, const ReplyPtr& reply) {
    const auto counts = server_->counts();
    MetricsText own;
    metrics_.write(own);
    own.gauge("troupe_http_connections", "Connections that are open.")
        .sample(static_cast<double>(counts.connections));
    own.gauge("troupe_http_streams", "Streams of events that are open.")
        .sample(static_cast<double>(counts.streams));
    own.counter("troupe_http_refused_connections_total",
                "Connections that were ended because there were too many.")
        .sample(static_cast<double>(counts.refused_connections));
    own.counter("troupe_http_cut_off_total", "Connections whose client read too slowly.")
        .sample(static_cast<double>(counts.cut_off));
    const auto asked = request.head.query.find("cluster");
    const std::size_t cluster = asked == request.head.query.end()
                                    ? 1
                                    : parse_number<std::size_t>(asked->second).value_or(0);
    if (cluster < 1 || cluster > service_->clusters().size())
      throw ApiError(404, ErrorCode::not_found, "there is no such cluster", "cluster");
    service_->ask<std::string>(
        cluster - 1, [](Inspector& inspector) { return inspector.metrics(); },
        [reply, own = own.text()](Result<std::string> text) {
          reply->send({.status = 200,
                       .type = "text/plain; version=0.0.4; charset=utf-8",
                       .body = own + (text ? text.value() : "")});
        },
        asker_of(request));
  }

  GatewayOptions options_;
  ApiKeys keys_;
  HttpMetrics metrics_;
  PictureLinks links_;
  bool loopback_ = false;
  std::string url_;
  boost::asio::io_context io_{1};
  ClipFiles clips_{io_, {}, models::clip_file};
  Router router_;
  std::optional<JobService> service_;
  std::optional<Api> api_;
  std::optional<HttpServer> server_;
};

Gateway::Gateway(const GatewayOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Gateway::~Gateway() = default;

const std::string& Gateway::url() const {
  return impl_->url_;
}

void Gateway::run() {
  for (;;) {
    try {
      impl_->io_.run();
      return;
    } catch (const std::exception& error) {
      // One request's fault must not end those of others, nor the cluster that is served.
      log_line(std::string("[http] an answer failed: ") + error.what());
    }
  }
}

void Gateway::stop() {
  impl_->io_.stop();
}

}  // namespace troupe::web
