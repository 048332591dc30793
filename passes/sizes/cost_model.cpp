#include "passes/sizes/cost_model.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "passes/measure/cache_folder.h"
#include "runtime/describe.h"

namespace recals {
namespace {

using Json = nlohmann::json;

/// FNV-1a: to tell files apart, not to protect them.
std::string hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char c : text) {
    hash = (hash ^ c) * 1099511628211ULL;
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

std::string kind_of(const std::string& device) {
  return device.substr(0, device.find(':'));
}

/// Reads an object key by key; what is missing, of the wrong kind, or left over is an error that names it.
class Fields {
 public:
  Fields(const Json& object, std::string origin, std::string prefix = "")
      : object_(object), origin_(std::move(origin)), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      fail(prefix_.empty() ? "it is no JSON object" : "\"" + prefix_ + "\" must be an object");
    }
  }

  std::string text(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      fail("\"" + prefix_ + key + "\" must be a text");
    }
    return value.get<std::string>();
  }

  int count(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > (1 << 20)) {
      fail("\"" + prefix_ + key + "\" must be a whole number from 1, not " + value.dump());
    }
    return value.get<int>();
  }

  double positive(const std::string& key) {
    const auto& value = at(key);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
      fail("\"" + prefix_ + key + "\" must be a number above 0, not " + value.dump());
    }
    return value.get<double>();
  }

  /// Rates by dtype.
  std::map<std::string, double> rates(const std::string& key) {
    Fields inner(at(key), origin_, prefix_ + key);
    inner.prefix_ += ".";
    std::map<std::string, double> rates;
    for (const auto& [dtype, rate] : inner.object_.items()) {
      (void)rate;
      rates[dtype] = inner.positive(dtype);
    }
    if (rates.count("f32") == 0) {
      fail("\"" + prefix_ + key + "\" must have a rate for \"f32\", which stands for the dtypes that are not there");
    }
    return rates;
  }

  Fields object(const std::string& key) {
    Fields inner(at(key), origin_, prefix_ + key);
    inner.prefix_ += ".";
    return inner;
  }

  /// After all were read.
  void end() const {
    for (const auto& [key, value] : object_.items()) {
      (void)value;
      if (std::find(read_.begin(), read_.end(), key) == read_.end()) {
        fail("it has a field \"" + prefix_ + key + "\" that this version does not know");
      }
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    TORCH_CHECK(
        false,
        "recals: the cost model ",
        origin_,
        " cannot be used: ",
        what,
        ". recals.calibrate() writes a good one; docs/cost-model.md describes the format.");
  }

 private:
  const Json& at(const std::string& key) {
    if (!object_.contains(key)) {
      fail("\"" + prefix_ + key + "\" is missing");
    }
    read_.push_back(key);
    return object_.at(key);
  }

  const Json& object_;
  std::string origin_;
  std::string prefix_;
  std::vector<std::string> read_;
};

double rate_for(const std::map<std::string, double>& rates, c10::ScalarType dtype) {
  const auto found = rates.find(dtype_name(dtype));
  return found == rates.end() ? rates.at("f32") : found->second;
}

double seconds_per_element(ElementKind kind, const CostModel& model) {
  switch (kind) {
    case ElementKind::None:
      return 0;
    case ElementKind::Random:
      return model.seconds_per_random;
    case ElementKind::Transcendental:
      return model.seconds_per_transcendental;
    case ElementKind::BatchNorm:
      return model.seconds_per_batch_norm;
    case ElementKind::Pooling:
      return model.seconds_per_pooling;
  }
  return 0;
}

} // namespace

CostModel parse_cost_model(const std::string& text, const std::string& origin) {
  const auto document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(!document.is_discarded(), "recals: the cost model ", origin, " is not JSON");
  Fields fields(document, origin);
  if (const int format = fields.count("format"); format != 1) {
    fields.fail("it has format " + std::to_string(format) + ", and this version reads format 1");
  }
  CostModel model;
  model.text = text;
  model.hash = hash_of(text);
  model.name = fields.text("name");
  model.device = fields.text("device");
  model.threads = fields.count("threads");
  model.seconds_per_call = fields.positive("seconds_per_call");
  model.matmul_flops_per_second = fields.rates("matmul_flops_per_second");
  model.convolution_flops_per_second = fields.rates("convolution_flops_per_second");
  auto bytes = fields.object("bytes_per_second");
  model.pointwise_bytes_per_second = bytes.positive("pointwise");
  model.reduction_bytes_per_second = bytes.positive("reduction");
  model.copy_bytes_per_second = bytes.positive("copy");
  bytes.end();
  auto elements = fields.object("seconds_per_element");
  model.seconds_per_random = elements.positive("random");
  model.seconds_per_transcendental = elements.positive("transcendental");
  model.seconds_per_batch_norm = elements.positive("batch_norm");
  model.seconds_per_pooling = elements.positive("pooling");
  elements.end();
  fields.end();
  return model;
}

std::string chosen_cost_model(const std::string& choice) {
  if (!choice.empty()) {
    return choice;
  }
  const char* chosen = std::getenv("RECALS_COST_MODEL");
  return chosen == nullptr || *chosen == 0 ? "built-in" : chosen;
}

std::string calibrated_path(const std::string& device) {
  const auto folder = cache_folder();
  TORCH_CHECK(
      !folder.empty(),
      "recals: neither XDG_CACHE_HOME nor HOME is set, so there is no place for calibrated cost models. Give a path.");
  return folder + "/cost-model-" + kind_of(device) + ".json";
}

namespace {

CostModel parse_cost_model_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(
      file.good() && !std::filesystem::is_directory(path),
      "recals: the cost model ",
      path,
      " cannot be read. A cost model is \"built-in\", \"profile\", \"calibrated\" (after recals.calibrate()), or the "
      "path of a file.");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_cost_model(text, path);
}

} // namespace

CostModel cost_model_for(const std::string& choice, const std::string& device) {
  const auto kind = kind_of(device);
  if (choice == "built-in") {
    const auto& models = built_in_cost_models();
    const auto found = models.find(kind);
    TORCH_CHECK(
        found != models.end(),
        "recals: there is no built-in cost model for ",
        kind,
        ". Make one with recals.calibrate(\"",
        kind,
        "\", path) and select it with cost_model=path.");
    return parse_cost_model(found->second, "built-in " + kind);
  }
  const auto path = choice == "calibrated" ? calibrated_path(kind) : choice;
  auto model = parse_cost_model_file(path);
  TORCH_CHECK(
      model.device == kind,
      "recals: the cost model ",
      path,
      " is for ",
      model.device,
      ", but the step runs on ",
      device);
  return model;
}

std::vector<CostModel> cost_models_for(const std::string& choice, const std::vector<c10::Device>& devices) {
  const auto chosen_for = [&](const c10::Device& device) {
    return choice != "built-in" && (choice != "calibrated" || std::filesystem::exists(calibrated_path(device.str())));
  };
  std::vector<CostModel> models;
  bool fits = false;
  for (const auto& device : devices) {
    const auto kind = kind_of(device.str());
    const std::string built_in = built_in_cost_models().count(kind) > 0 ? kind : "cpu";
    models.push_back(cost_model_for("built-in", built_in));
    if (chosen_for(device)) {
      auto model = parse_cost_model_file(choice == "calibrated" ? calibrated_path(kind) : choice);
      if (model.device == kind) {
        models.back() = std::move(model);
        fits = true;
      }
    }
  }
  if (choice != "built-in" && !fits) {
    cost_model_for(choice, devices.at(0).str()); // says what is wrong
  }
  return models;
}

double seconds_of(const Work& work, const CostModel& model) {
  if (work.bytes == 0) {
    return 0;
  }
  double flops_per_second = 1;
  double bytes_per_second = model.pointwise_bytes_per_second;
  switch (work.kind) {
    case WorkKind::Matmul:
      flops_per_second = rate_for(model.matmul_flops_per_second, work.dtype);
      break;
    case WorkKind::Convolution:
      flops_per_second = rate_for(model.convolution_flops_per_second, work.dtype);
      break;
    case WorkKind::Pointwise:
      break;
    case WorkKind::Reduction:
      bytes_per_second = model.reduction_bytes_per_second;
      break;
    case WorkKind::Copy:
      bytes_per_second = model.copy_bytes_per_second;
      break;
  }
  return model.seconds_per_call +
      std::max(work.flops / flops_per_second, static_cast<double>(work.bytes) / bytes_per_second) +
      static_cast<double>(work.elements) * seconds_per_element(work.element_kind, model);
}

} // namespace recals
