#include "actors/user/user_host.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/user/call_server.h"
#include "actors/user/control_thread.h"
#include "actors/user/json_values.h"
#include "base/available_memory.h"
#include "base/error_text.h"
#include "base/xxh64.h"
#include "transport/calls/exchange.h"
#include "transport/control/keys.h"
#include "transport/wire/user_messages.h"
#include "troupe/actor_plugin.h"

namespace troupe::runtime {
namespace {

/// Size of the memory shared with the node agent, in which an actor's process writes what it is
/// doing: so that the cause of a death can name the method even when nothing had the time to say
/// so.
constexpr std::size_t kDoingBytes = 256;

/// The process's side; does nothing where no descriptor was given.
class Doing {
 public:
  /// `descriptor` is that of the memory, inherited; negative = none.
  explicit Doing(int descriptor);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  void begin(const std::string& what);
  void end();

 private:
  char* memory_ = nullptr;
};

/// A user's shared library, open in this process for good.
class Plugin {
 public:
  /// Throws std::runtime_error, one line: no such file, cannot be loaded (why), no entry point
  /// (TROUPE_PLUGIN is missing), another ABI or compiler, a class twice.
  explicit Plugin(const std::filesystem::path& file);

  const std::string& file() const { return file_; }
  /// Returns null if the plugin has no class of that name.
  const plugin::Class* find(const std::string& name) const;
  wire::ClassList describe() const;

 private:
  std::string file_;
  const plugin::Description* description_ = nullptr;
};

struct UserHostOptions {
  std::string control_endpoint;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string token;                        // of the cluster, shown to the controller
  std::optional<control::ClientKeys> keys;  // for a controller on tcp that asks
  std::string ticket;                       // that callers must show
  std::string plugin;                       // file
  std::string endpoint;                     // where to listen for calls
  std::string blob_endpoint;                // and for large values
  std::optional<control::Door> door;        // keys of its own door; none where it asks for none
  bool insecure = false;
  int doing = -1;  // descriptor of the memory that says what runs
};

/// The process of one user's actor: one object, one mailbox, one work loop; callers connect to it
/// directly. The controller says which class to make.
class UserHost final : public ActorContext {
 public:
  explicit UserHost(UserHostOptions options);
  ~UserHost() override;

  /// Runs until the controller says shutdown or is lost. Returns the process's exit code.
  int run();

  std::uint64_t id() const override { return options_.id; }
  const std::string& name() const override { return create_.name; }
  std::uint64_t restarts() const override { return create_.restarts; }
  const std::vector<int>& gpus() const override { return gpus_; }
  Actors actors() override { return Actors(exchange_); }
  void progress() override { progress_.fetch_add(2, std::memory_order_relaxed); }

 private:
  class Running;

  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  void work();
  void make_object();
  wire::CallResult carry_out(const ReadyCall& call);
  void answer(control::PeerId caller, wire::CallResult result);
  void send_answers();
  void leave();

  UserHostOptions options_;
  std::shared_ptr<zmq::context_t> context_;
  std::unique_ptr<ControlThread> process_;
  std::shared_ptr<calls::Exchange> exchange_;
  std::unique_ptr<CallServer> server_;
  Mailbox<ReadyCall> mailbox_;
  Doing doing_;
  /// Progress of the work loop: odd while a method runs.
  std::atomic<std::uint64_t> progress_{0};

  wire::CreateActor create_;
  wire::Header create_header_;
  std::vector<int> gpus_;
  std::unique_ptr<Plugin> plugin_;
  const plugin::Class* class_ = nullptr;
  std::unordered_map<std::string, std::uint32_t> method_index_;
  std::unique_ptr<plugin::Instance> object_;
  std::thread worker_;

  std::mutex answers_mutex_;
  std::vector<std::pair<control::PeerId, wire::CallResult>> answers_;
};

Doing::Doing(int descriptor) {
  if (descriptor < 0) return;
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  void* memory = mmap(nullptr, kDoingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory != MAP_FAILED) memory_ = static_cast<char*>(memory);
}

Doing::~Doing() {
  if (memory_) munmap(memory_, kDoingBytes);
}

void Doing::begin(const std::string& what) {
  if (!memory_) return;
  const auto length = std::min(what.size(), kDoingBytes - 1);
  std::memcpy(memory_, what.data(), length);
  memory_[length] = '\0';
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

void Doing::end() {
  if (memory_) memory_[0] = '\0';
}

[[noreturn]] void refuse(const std::string& file, const std::string& why) {
  throw std::runtime_error("[plugin] " + file + ": " + why);
}

Plugin::Plugin(const std::filesystem::path& file) : file_(file.string()) {
  if (!std::filesystem::is_regular_file(file)) refuse(file_, "there is no such file on this host");
  void* library = dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) refuse(file_, "cannot be loaded: " + first_line(dlerror()));
  using Entry = const plugin::Description* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "troupe_plugin_v1"));
  if (!entry)
    refuse(file_,
           "has no entry point troupe_plugin_v1: is TROUPE_PLUGIN(...) in one of its files?");
  description_ = entry();
  if (!description_) refuse(file_, "its entry point gives nothing");
  if (description_->abi != plugin::kAbi || description_->bytes != sizeof(plugin::Description)) {
    refuse(file_, "was built for plugin version " + std::to_string(description_->abi) +
                      ", this troupe has version " + std::to_string(plugin::kAbi));
  }
  if (std::string(description_->build) != plugin::kBuild) {
    refuse(file_, "was built with another compiler's ABI (" + std::string(description_->build) +
                      "), this troupe with " + plugin::kBuild);
  }
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    if (!names.insert(description_->classes[i].name).second)
      refuse(file_, "names the class " + std::string(description_->classes[i].name) + " twice");
  }
}

const plugin::Class* Plugin::find(const std::string& name) const {
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    if (name == description_->classes[i].name) return &description_->classes[i];
  }
  return nullptr;
}

wire::ClassList Plugin::describe() const {
  wire::ClassList list;
  for (std::uint32_t i = 0; i < description_->class_count; ++i) {
    const auto& from = description_->classes[i];
    wire::ClassEntry entry{from.name, from.arguments, from.types, from.needs_torch != 0,
                           {},        file_,          {}};
    for (std::uint32_t m = 0; m < from.method_count; ++m) {
      const auto& method = from.methods[m];
      entry.methods.push_back({method.name, method.arguments, method.result});
    }
    list.classes.push_back(std::move(entry));
  }
  return list;
}

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
  process_ = std::make_unique<ControlThread>(std::move(process));
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

/// Fields between tabs, for the controller: a line per class and method and one that says that it
/// is all, or one that says what is wrong with the file.
int describe(const std::string& file) try {
  const Plugin plugin(file);
  std::printf("troupe-file\t%llu\n", static_cast<unsigned long long>(xxh64_of(file)));
  for (const auto& entry : plugin.describe().classes) {
    std::printf("troupe-class\t%s\t%s\t%llu\t%d\n", entry.name.c_str(), entry.arguments.c_str(),
                static_cast<unsigned long long>(entry.types), entry.needs_torch ? 1 : 0);
    for (const auto& method : entry.methods) {
      std::printf("troupe-method\t%s\t%s\t%s\n", method.name.c_str(), method.arguments.c_str(),
                  method.result.c_str());
    }
  }
  std::printf("troupe-end\n");
  std::fflush(stdout);
  return 0;
} catch (const std::exception& error) {
  std::string why = first_line(error.what());
  std::ranges::replace(why, '\t', ' ');
  std::printf("troupe-failure\t%s\n", why.c_str());
  std::fflush(stdout);
  return 1;
}

}  // namespace

int host_main(int argc, char** argv) {
  CLI::App app{
      "troupe-host: one user's actor of a troupe cluster. Node agents start it; see "
      "docs/actors.md."};
  UserHostOptions options;
  std::string file;
  int parent = 0;
  bool host = false;
  app.add_flag("--host", host);  // how troupe-actor was told to come here
  auto* only_describe = app.add_option("--describe", file, "print what a plugin offers");
  app.add_option("--control", options.control_endpoint)->excludes(only_describe);
  app.add_option("--id", options.id);
  app.add_option("--plugin", options.plugin);
  app.add_option("--listen", options.endpoint);
  app.add_option("--listen-blobs", options.blob_endpoint);
  app.add_flag("--insecure", options.insecure);
  app.add_option("--doing", options.doing);
  app.add_option("--parent", parent);
  CLI11_PARSE(app, argc, argv);
  begin_as_child(parent);
  options.token = take_secret("TROUPE_TOKEN");
  options.ticket = take_secret("TROUPE_TICKET");
  const std::string control_keys = take_secret("TROUPE_CONTROL_KEYS");
  const std::string door_keys = take_secret("TROUPE_DOOR_KEYS");
  const std::string who =
      file.empty() ? "actor " + std::to_string(options.id) : std::string("troupe-host");
  try {
    if (!file.empty()) return describe(file);
    options.incarnation = take_incarnation();
    if (!control_keys.empty())
      options.keys = control::client_keys_from(control_keys, "the node agent");
    if (!door_keys.empty()) options.door = control::door_from(door_keys, "the node agent");
    UserHost actor(options);
    leave(actor.run());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", who.c_str(), first_line(text_of(error)).c_str());
    leave(1);
  }
}

}  // namespace troupe::runtime
