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

/// Whether all values are numbers. On a device the host waits for it.
bool all_finite(const at::Tensor& values);

/// Which layer of a micro-step first met what is no number: one sum a layer, which stays on the
/// device and is read only when the micro-step's result is not finite.
class LayerWatch {
 public:
  /// A micro-step begins.
  void begin() {
    names_.clear();
    sums_.clear();
  }
  /// Before a layer: some of what it was given, of which something is not finite where anything of
  /// its input is not. No values say nothing.
  void see(std::string name, const at::Tensor& given);

  /// What a watch of its own saw of some layers: their names and its sums as one, [names].
  void see_all(const std::vector<std::string>& names, const at::Tensor& sums);

  const std::vector<std::string>& names() const { return names_; }
  /// float32, without dimensions, one a name.
  const std::vector<at::Tensor>& sums() const { return sums_; }
  /// " after block 3" by the sums as they were read, " before block 0" where the first layer was
  /// given it; nothing where no layer was seen.
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

  /// Tells of these values, and of earlier ones whose answer is here by now. `layers` are those
  /// that made them.
  void require(const at::Tensor& values, const std::string& what, const std::string& type,
               const LayerWatch& layers);
  /// As `require`, of values that the host reads anyway: it waits for them. What earlier ones
  /// answered comes first.
  void require_now(const at::Tensor& values, const std::string& what, const std::string& type);
  /// Tells of those whose answer is here; the host does not wait.
  void read();
  /// As `read`, of all of them: calls `pause` while an answer is outstanding, until that throws.
  void settle(const std::function<void()>& pause);
  /// Takes pinned memory for as many answers as may be outstanding: to allocate it later may wait
  /// for the device. Without effect on a CPU.
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
  /// Of at least so many numbers.
  at::Tensor take_block(std::int64_t numbers);
  /// The oldest answer, which is here.
  Answer take_answer();

  Read read_;
  Tell tell_;
  bool pins_ = false;
  std::vector<at::Tensor> spare_;  // blocks that were reserved and hold no answer
  std::deque<Answer> answers_;
};

}  // namespace troupe::actors
