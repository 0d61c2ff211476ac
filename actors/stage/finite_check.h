#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// Returns whether all values are finite. The host waits for a device.
bool all_finite(const at::Tensor& values);

/// Finds the layer of a micro-step that first met a value that is not finite: one sum per layer,
/// which stays on the device and is read only when the micro-step's result is not finite.
class LayerWatch {
 public:
  /// Begins a micro-step.
  void begin() {
    names_.clear();
    sums_.clear();
  }
  /// Notes a layer before it runs. `given` is some of the layer's input, and contains a value that
  /// is not finite if any of the input does. An empty `given` is ignored.
  void see(std::string name, const at::Tensor& given);

  /// Notes layers that another watch saw: their names and their sums as one tensor, [names].
  void see_all(const std::vector<std::string>& names, const at::Tensor& sums);

  const std::vector<std::string>& names() const { return names_; }
  /// Sums, float32, without dimensions, one per name.
  const std::vector<at::Tensor>& sums() const { return sums_; }
  /// Returns " after block 3" by the sums as they were read, " before block 0" if the first layer's
  /// input was not finite; nothing if no layer was seen.
  static std::string first_bad(const std::vector<std::string>& names, const float* sums);

 private:
  std::vector<std::string> names_;
  std::vector<at::Tensor> sums_;
};

/// Throws it as a std::runtime_error.
void fail_with(const std::string& sentence);

/// Looks for NaN and infinity in what micro-steps make. On a CPU at once. On a device the host does
/// not wait: an answer goes to pinned memory behind the computation, and is read by the first call
/// that finds it there, a micro-step later as a rule.
class FiniteCheck {
 public:
  enum class Read { at_once, later };
  /// Told "[actor] <what> is not finite after block 3, in <type>"; may throw.
  using Tell = std::function<void(const std::string&)>;
  explicit FiniteCheck(at::Device device, Tell tell = fail_with)
      : FiniteCheck(device.is_cpu() ? Read::at_once : Read::later, std::move(tell)) {
    pins_ = !device.is_cpu();
  }
  explicit FiniteCheck(Read read, Tell tell = fail_with) : read_(read), tell_(std::move(tell)) {}

  /// Tells of values that are not finite among these, and among earlier ones whose answer is here
  /// by now. `layers` are the layers that made `values`.
  void require(const at::Tensor& values, const std::string& what, const std::string& type,
               const LayerWatch& layers);
  /// Same as `require`, but for values that the host reads anyway: it waits for them. Answers to
  /// earlier questions are read first.
  void require_now(const at::Tensor& values, const std::string& what, const std::string& type);
  /// Tells of values that are not finite if their answer is here; the host does not wait.
  void read();
  /// Same as `read`, but for all answers: calls `pause` while an answer is outstanding, until that
  /// throws.
  void settle(const std::function<void()>& pause);
  /// Takes pinned memory for `answers` outstanding answers, because allocating it later may wait
  /// for the device. No effect on a CPU.
  void reserve(std::size_t answers);

 private:
  struct Answer {
    at::Tensor numbers;  // the values' largest magnitude, then the layers' sums
    at::Tensor block;    // where they lie, on a device
    std::optional<c10::Event> behind;
    std::string what;
    std::string type;
    std::vector<std::string> layers;

    bool is_here() const { return !behind || behind->query(); }
  };
  void check(const Answer& answer) const;
  Answer ask(const at::Tensor& values, const std::string& what, const std::string& type,
             const LayerWatch& layers);
  /// Returns a block with room for at least `numbers` numbers.
  at::Tensor take_block(std::int64_t numbers);
  /// Takes out the oldest answer, which is here.
  Answer take_answer();

  Read read_;
  Tell tell_;
  bool pins_ = false;
  std::vector<at::Tensor> spare_;  // blocks that were reserved and hold no answer
  std::deque<Answer> answers_;
};

}  // namespace troupe::actors
