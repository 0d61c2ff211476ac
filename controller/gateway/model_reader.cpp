#include "controller/gateway/model_reader.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "models/spec/fingerprint.h"
#include "models/spec/lora_spec.h"

namespace troupe::gateway {
namespace {

constexpr std::size_t kRemembered = 8;
constexpr int kAttempts = 3;
constexpr std::chrono::seconds kEndDeadline{2};

/// Of the worker's thread alone.
class Memory {
 public:
  Memory(ModelReader::Read read, AllowedFolders allowed)
      : read_(std::move(read)), allowed_(std::move(allowed)) {}

  ModelReading look(const std::string& name, const std::vector<wire::Lora>& loras) {
    ModelReading reading = look(name);
    if (reading.model) add_loras(reading, loras);
    return reading;
  }

 private:
  ModelReading look(const std::string& name) {
    ModelReading reading;
    const auto found = allowed_.resolve(name);
    if (!found) {
      reading.error = AllowedFolders::refusal(name);
      return reading;
    }
    const std::string& folder = reading.folder = *found;
    try {
      for (int attempt = 0; attempt < kAttempts; ++attempt) {
        reading.fingerprint = spec::fingerprint(folder);
        if ((reading.model = find(reading.fingerprint))) return reading;
        reading.model = std::make_shared<const spec::ModelSpec>(read_(folder));
        if (spec::fingerprint(folder) != reading.fingerprint) continue;  // it changed meanwhile
        remember(reading);
        return reading;
      }
      reading.error = "[read_model] " + folder + ": it is being written to: try again later";
    } catch (const std::exception& error) {
      reading.error = error.what();
    } catch (...) {
      reading.error = "[read_model] " + folder + ": an exception without text";
    }
    reading.model = nullptr;
    return reading;
  }

  /// Paths that clients may not name are refused before they are looked at.
  void add_loras(ModelReading& reading, const std::vector<wire::Lora>& loras) const {
    try {
      for (const auto& lora : loras) {
        const auto found = allowed_.resolve(lora.path);
        if (!found) throw std::runtime_error(AllowedFolders::refusal(lora.path));
        reading.lora_fingerprints.push_back(spec::file_fingerprint(*found));
        spec::read_lora_spec(*found, *reading.model);
        reading.loras.push_back({*found, lora.scale});
      }
    } catch (const std::exception& error) {
      reading.error = error.what();
      reading.model = nullptr;
    }
  }

  std::shared_ptr<const spec::ModelSpec> find(std::uint64_t fingerprint) {
    const auto known = std::ranges::find(models_, fingerprint, &ModelReading::fingerprint);
    if (known == models_.end()) return nullptr;
    std::rotate(models_.begin(), known, known + 1);
    return models_.front().model;
  }
  void remember(const ModelReading& reading) {
    models_.push_front(reading);
    if (models_.size() > kRemembered) models_.pop_back();
  }

  ModelReader::Read read_;
  AllowedFolders allowed_;
  std::deque<ModelReading> models_;  // the last used first
};

}  // namespace

struct ModelReader::Shared {
  Shared(boost::asio::io_context& io_, Read read_, AllowedFolders allowed)
      : io(io_),
        memory(
            read_ ? std::move(read_)
                  : [](const std::string& folder) { return spec::read_model_spec(folder); },
            std::move(allowed)) {}

  boost::asio::io_context& io;  // by others than its own thread only while not `closed`
  Memory memory;
  std::mutex mutex;
  std::condition_variable changed;
  struct Question {
    std::string folder;
    std::vector<wire::Lora> loras;
  };
  std::deque<Question> questions;
  std::deque<ModelReading> readings;
  std::deque<Handler> handlers;  // the loop's own
  std::thread thread;
  bool closed = false;
  bool ended = false;
};

ModelReader::ModelReader(boost::asio::io_context& io, Read read, AllowedFolders allowed)
    : shared_(std::make_shared<Shared>(io, std::move(read), std::move(allowed))) {
  shared_->thread = std::thread([shared = shared_] { work(shared); });
}

ModelReader::~ModelReader() {
  std::unique_lock lock(shared_->mutex);
  shared_->closed = true;
  shared_->handlers.clear();
  shared_->changed.notify_all();
  const bool ended =
      shared_->changed.wait_for(lock, kEndDeadline, [this] { return shared_->ended; });
  lock.unlock();
  if (ended) {
    shared_->thread.join();
  } else {
    shared_->thread.detach();
  }
}

void ModelReader::read(std::string folder, std::vector<wire::Lora> loras, Handler handler) {
  shared_->handlers.push_back(std::move(handler));
  const std::lock_guard lock(shared_->mutex);
  shared_->questions.push_back({std::move(folder), std::move(loras)});
  shared_->changed.notify_all();
}

std::size_t ModelReader::waiting() const {
  return shared_->handlers.size();
}

void ModelReader::work(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock, [&] { return shared->closed || !shared->questions.empty(); });
    if (shared->closed) break;
    const auto question = std::move(shared->questions.front());
    shared->questions.pop_front();
    lock.unlock();
    ModelReading reading = shared->memory.look(question.folder, question.loras);
    lock.lock();
    if (shared->closed) break;
    shared->readings.push_back(std::move(reading));
    boost::asio::post(shared->io, [shared] { hand_over(shared); });
  }
  shared->ended = true;
  shared->changed.notify_all();
}

void ModelReader::hand_over(const std::shared_ptr<Shared>& shared) {
  ModelReading reading;
  {
    const std::lock_guard lock(shared->mutex);
    if (shared->closed) return;
    reading = std::move(shared->readings.front());
    shared->readings.pop_front();
  }
  const Handler handler = std::move(shared->handlers.front());
  shared->handlers.pop_front();
  handler(reading);
}

}  // namespace troupe::gateway
