#include "controller/service/model_reader.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <deque>
#include <exception>
#include <limits>
#include <mutex>
#include <stdexcept>

#include "base/available_memory.h"
#include "models/spec/fingerprint.h"
#include "models/spec/hub.h"
#include "models/spec/lora_spec.h"
#include "models/text/textual_inversion.h"
#include "models/text/tokenizers.h"
#include "transport/wire/request_rules.h"

namespace troupe::service {
namespace {

constexpr std::size_t kRemembered = 8;
constexpr int kAttempts = 3;
constexpr std::size_t kReaders = 4;
constexpr std::size_t kMaxError = 4096;

}  // namespace

/// Memory of what was read. Belongs to the reading threads alone, but for `give_up`.
class ModelReader::Memory {
 public:
  Memory(Read read, AllowedFolders allowed)
      : read_(std::move(read)), allowed_(std::move(allowed)) {}

  /// Gives up all readings: nobody waits for them any more.
  void give_up() { given_up_ = true; }
  bool given_up() const { return given_up_; }

  ModelReading look(const std::string& name, const Added& added) {
    ModelReading reading;
    try {
      reading = look(name);
      if (!reading.model) return reading;
      reading.field = wire::JobField::controlnets;
      add_controlnets(reading, added.controlnets);
      reading.field = wire::JobField::loras;
      add_loras(reading, added.loras);
      reading.field = wire::JobField::embeddings;
      const auto learned = add_embeddings(reading, added.embeddings);
      reading.field = wire::JobField::prompts;
      models::check_learned_words(added.texts, learned, *reading.model);
      return reading;
    } catch (const std::exception& error) {
      reading.error = troupe::text_of(error);
    } catch (...) {
      reading.error = "[read_model] " + name + ": an exception without text";
    }
    reading.model = nullptr;
    if (reading.error.size() > kMaxError) reading.error = reading.error.substr(0, kMaxError) + "…";
    return reading;
  }

 private:
  ModelReading look(const std::string& name) {
    ModelReading reading;
    const std::string& folder = reading.folder = found(name, spec::HubContent::pipeline);
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      reading.fingerprint = spec::fingerprint(folder);
      if ((reading.model = find(reading.fingerprint))) return reading;
      reading.model = std::make_shared<const spec::ModelSpec>(read_(folder));
      if (spec::fingerprint(folder) != reading.fingerprint) continue;  // it changed meanwhile
      remember(reading);
      return reading;
    }
    throw std::runtime_error("[read_model] " + folder +
                             ": it is being written to: try again later");
  }

  /// Adds the ControlNets to a reading. Paths that clients may not name are refused before they are
  /// looked at.
  void add_controlnets(ModelReading& reading, const std::vector<std::string>& nets) const {
    if (nets.empty()) return;
    auto model = *reading.model;
    for (const auto& net : nets) {
      const auto& folder = reading.controlnets.emplace_back(found(net, spec::HubContent::part));
      reading.controlnet_fingerprints.push_back(spec::fingerprint(folder));
      spec::add_controlnet(model, folder);
    }
    reading.model = std::make_shared<const spec::ModelSpec>(std::move(model));
  }

  /// Returns the folder that a client's text names. Throws std::runtime_error for one that it may
  /// not name.
  std::string found(const std::string& name, spec::HubContent content) const {
    const auto named = allowed_.any() ? spec::cached_model_folder(name, content)
                                      : spec::cached_model_folder_or_text(name, content);
    const auto folder = allowed_.resolve(named.string());
    if (!folder) throw std::runtime_error(AllowedFolders::refusal(name));
    if (const auto why = allowed_.refusal_of_links(*folder)) throw std::runtime_error(*why);
    return *folder;
  }

  /// Adds the LoRAs to a reading. Paths that clients may not name are refused before they are
  /// looked at.
  void add_loras(ModelReading& reading, const std::vector<wire::Lora>& loras) const {
    for (const auto& lora : loras) {
      const auto found = allowed_.resolve_file(lora.path, spec::kAdapterConfig);
      if (!found) throw std::runtime_error(AllowedFolders::refusal(lora.path));
      reading.lora_fingerprints.push_back(spec::lora_fingerprint(*found));
      const auto read = spec::read_lora_spec(*found, *reading.model, lora.of_second);
      if (!read.unused.empty()) reading.lora_warnings.push_back(read.unused);
      reading.loras.push_back({*found, lora.scale, lora.of_second});
    }
  }

  std::vector<models::TextualInversion> add_embeddings(
      ModelReading& reading, const std::vector<wire::Embedding>& asked) const {
    std::vector<models::TextualInversionFile> files;
    for (const auto& embedding : asked) {
      const auto found = allowed_.resolve_file(embedding.path);
      if (!found) throw std::runtime_error(AllowedFolders::refusal(embedding.path));
      files.push_back({*found, embedding.token});
    }
    auto read = models::read_textual_inversions(files, *reading.model);
    for (std::size_t i = 0; i < read.size(); ++i)
      reading.embeddings.push_back({files[i].path, read[i].token, read[i].fingerprint});
    return read;
  }

  std::shared_ptr<const spec::ModelSpec> find(std::uint64_t fingerprint) {
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(models_, fingerprint, &ModelReading::fingerprint);
    if (known == models_.end()) return nullptr;
    std::rotate(models_.begin(), known, known + 1);
    return models_.front().model;
  }
  void remember(const ModelReading& reading) {
    const std::lock_guard lock(mutex_);
    models_.push_front(reading);
    if (models_.size() > kRemembered) models_.pop_back();
  }

  Read read_;
  AllowedFolders allowed_;
  std::mutex mutex_;
  std::deque<ModelReading> models_;  // the last used first; behind `mutex_`
  std::atomic<bool> given_up_ = false;
};

ModelReader::ModelReader(boost::asio::io_context& io, Read read, AllowedFolders allowed)
    : io_(io),
      memory_(std::make_shared<Memory>(
          read ? std::move(read)
               : [](const std::string& folder) { return models::read_model_folder(folder); },
          std::move(allowed))),
      threads_([&io](SideThread::OnLoop action) { boost::asio::post(io, std::move(action)); },
               std::numeric_limits<std::size_t>::max(), kReaders) {}

ModelReader::~ModelReader() {
  memory_->give_up();
}

void ModelReader::read(std::string folder, const wire::ImageRequest& request,
                       std::chrono::milliseconds within, Handler handler) {
  const auto number = ++last_;
  Files files{std::move(folder), {}};
  for (const auto& lora : request.loras)
    files.others.push_back(lora.path);
  for (const auto& embedding : request.embeddings)
    files.others.push_back(embedding.path);
  for (const auto& net : request.controlnets)
    files.others.push_back(net);
  auto& asked = asked_
                    .emplace(number, Asked{std::move(files),
                                           {request.loras, request.embeddings,
                                            wire::texts_of(request), request.controlnets},
                                           std::move(handler),
                                           boost::asio::steady_timer(io_, within)})
                    .first->second;
  waiting_.insert(number);
  asked.deadline.async_wait([this, number](const boost::system::error_code& error) {
    if (!error) expire(number);
  });
  begin_next();
}

void ModelReader::expire(std::uint64_t number) {
  auto asked = asked_.extract(number);
  if (asked.empty()) return;
  waiting_.erase(number);
  ModelReading reading;
  reading.late = true;
  reading.error = "[read_model] " + asked.mapped().files.folder + ": was not read in time";
  asked.mapped().handler(reading);
}

void ModelReader::begin_next() {
  for (auto next = waiting_.begin(); next != waiting_.end() && in_hand_.size() < kReaders;) {
    const auto& asked = asked_.at(*next);
    if (in_hand_.insert(asked.files).second) {
      begin(*next, asked);
      next = waiting_.erase(next);
    } else {
      ++next;
    }
  }
}

void ModelReader::begin(std::uint64_t number, const Asked& asked) {
  // Made here, so that the handler is called even if there is no memory left there.
  const auto reading = std::make_shared<ModelReading>();
  threads_.post([reading, memory = memory_, folder = asked.files.folder, added = asked.added,
                 answer = SideThread::OnLoop([this, number, reading, files = asked.files] {
                   in_hand_.erase(files);
                   auto known = asked_.extract(number);
                   begin_next();
                   if (!known.empty()) known.mapped().handler(*reading);
                 })]() mutable -> SideThread::OnLoop {
    if (memory->given_up()) return nullptr;
    try {
      *reading = memory->look(folder, added);
    } catch (...) {
      reading->model = nullptr;
      reading->error = "out of memory";
    }
    return std::move(answer);
  });
}

}  // namespace troupe::service
