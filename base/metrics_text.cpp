#include "base/metrics_text.h"

#include <cmath>

#include "base/numbers.h"

namespace troupe {
namespace {

std::string escaped(const std::string& text, bool quotes) {
  std::string out;
  for (const char letter : text) {
    if (letter == '\\') {
      out += "\\\\";
    } else if (letter == '\n') {
      out += "\\n";
    } else if (letter == '"' && quotes) {
      out += "\\\"";
    } else {
      out += letter;
    }
  }
  return out;
}

std::string value_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return number_text(value);
}

}  // namespace

MetricsText& MetricsText::family(const std::string& name, const std::string& help,
                                 const char* type) {
  name_ = name;
  text_ += "# HELP " + name + " " + escaped(help, false) + "\n# TYPE " + name + " " + type + "\n";
  return *this;
}

MetricsText& MetricsText::counter(const std::string& name, const std::string& help) {
  return family(name, help, "counter");
}

MetricsText& MetricsText::gauge(const std::string& name, const std::string& help) {
  return family(name, help, "gauge");
}

MetricsText& MetricsText::histogram(const std::string& name, const std::string& help) {
  return family(name, help, "histogram");
}

MetricsText& MetricsText::sample(const Histogram& values, const Labels& labels) {
  std::uint64_t up_to = 0;
  const auto bucket = [&](double bound, std::uint64_t count) {
    auto all = labels;
    all.emplace_back("le", value_text(bound));
    line(name_ + "_bucket", static_cast<double>(count), all);
  };
  for (std::size_t i = 0; i < values.bounds().size(); ++i)
    bucket(values.bounds()[i], up_to += values.counts()[i]);
  bucket(INFINITY, values.count());
  line(name_ + "_sum", values.sum(), labels);
  line(name_ + "_count", static_cast<double>(values.count()), labels);
  return *this;
}

MetricsText& MetricsText::sample(double value, const Labels& labels) {
  line(name_, value, labels);
  return *this;
}

void MetricsText::line(const std::string& name, double value, const Labels& labels) {
  text_ += name;
  if (!labels.empty()) {
    text_ += '{';
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (i > 0) text_ += ',';
      text_ += labels[i].first + "=\"" + escaped(labels[i].second, true) + "\"";
    }
    text_ += '}';
  }
  text_.append(" ").append(value_text(value)).append("\n");
}

}  // namespace troupe
