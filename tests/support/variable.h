#pragma once
#include <cstdlib>
#include <optional>
#include <string>

namespace troupe::testing {

/// A variable of the environment, as long as this lives, also for processes that are started
/// meanwhile; then as it was before.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* set = std::getenv(name)) before_ = set;
    setenv(name, value.c_str(), 1);
  }
  ~Variable() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace troupe::testing
