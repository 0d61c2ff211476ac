#pragma once
#include <map>
#include <string>

#include "controller/journal/journal.h"
#include "tests/controller/sample_model.h"

namespace troupe::testing {

/// A controller's blobs and its table, without the controller.
struct Desk {
  jobs::JobTable table{64, 256};
  std::map<control::BlobId, control::BlobBytes> blobs;
  control::BlobId last = 0;

  control::BlobId keep(std::string bytes) {
    blobs[++last] = std::make_shared<const std::string>(std::move(bytes));
    return last;
  }
  journal::KeepBytes keeper() {
    return [this](control::BlobBytes bytes) {
      blobs[++last] = std::move(bytes);
      return last;
    };
  }
  journal::BytesOf bytes_of() const {
    return [this](control::BlobId id) { return blobs.at(id); };
  }
  std::string text(control::BlobId id) const { return *blobs.at(id); }

  jobs::JobEntry& add(std::uint64_t key = 0, Method method = Method::exact, double now = 10) {
    wire::JobSpec spec;
    spec.model = "/models/a";
    spec.request.prompts = {"a cat"};
    spec.request.steps = 12;
    spec.request.method = method;
    if (method != Method::exact) spec.request.num_pipeline_patch = 2;
    auto plan = plan::make_plan(test::sample_model(), spec.request, {});
    const auto id = table.add(std::move(spec), std::move(plan), 5, true, now, 77);
    auto& job = *table.find(id.value());
    job.client.key = key;
    return job;
  }
  void set_boundary(jobs::JobEntry& job, int next_step, const std::string& text) {
    job.course.boundary = jobs::Boundary{.next_step = next_step, .pieces = {}};
    for (int piece = 0; piece < 2; ++piece) {
      const auto bytes = text + std::to_string(piece);
      job.course.boundary->pieces.push_back(
          {{"boundary", keep(bytes), bytes.size(), {}}, piece, piece + 1, {{0, 4}}});
    }
    job.step = next_step;
  }
};

/// Journal and store without a thread between them.
struct Book {
  journal::Store& store;
  Desk& desk;
  journal::Calendar calendar{1000};
  journal::Journal journal{
      [this](const journal::Change& change, const journal::Journal::Done& done) {
        ++changes;
        store.apply(change);
        if (done) done(std::nullopt);
        store.tidy({});
      },
      desk.bytes_of(), calendar};
  int changes = 0;
};

}  // namespace troupe::testing
