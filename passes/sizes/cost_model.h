#pragma once

/// Seconds of a kernel: a roofline over its floating-point operations and the bytes that it moves, plus what random
/// numbers, transcendental functions and the like cost per element, with constants from a JSON file (docs/cost-model.md has the format).
///
/// The library holds one file per kind of device (passes/sizes/cost_models); `recals.calibrate` writes one for the
/// machine at hand. Plans weigh recomputation against recomputation, so ratios matter more than seconds.

#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "passes/plan/step_graph.h"
#include "passes/sizes/kernel_rules.h"

namespace recals {

struct CostModel {
  std::string name;
  std::string text; ///< the file's
  std::string hash; ///< of the text, 16 hexadecimal digits
  std::string device; ///< the kind it is for, "cpu"
  int threads = 1; ///< that its constants were measured with
  double seconds_per_call = 0;
  std::map<std::string, double> matmul_flops_per_second; ///< by dtype; "f32" stands for those that are not there
  std::map<std::string, double> convolution_flops_per_second;
  double pointwise_bytes_per_second = 0;
  double reduction_bytes_per_second = 0;
  double copy_bytes_per_second = 0;
  double seconds_per_random = 0; ///< element, as the following ones
  double seconds_per_transcendental = 0;
  double seconds_per_batch_norm = 0;
  double seconds_per_pooling = 0;

  plan::CostSource source() const {
    return {name, hash};
  }
};

/// Time measured on the step's own nodes (profile.h) instead of a model.
constexpr const char* kProfile = "profile";

/// What `choice` stands for when nothing was chosen: the environment variable RECALS_COST_MODEL, or "built-in".
std::string chosen_cost_model(const std::string& choice);

/// `choice`: "built-in", "calibrated" (the file at `calibrated_path`), or a path; `device`: "cpu", "cuda:0". Throws
/// c10::Error naming the file and what is wrong with it.
CostModel cost_model_for(const std::string& choice, const std::string& device);

/// One per device. Throws as `cost_model_for`; a file must be for the kind of one of the devices, the others have the
/// built-in model of their kind, or the CPU's where there is none: plans weigh times of one device against each other.
std::vector<CostModel> cost_models_for(const std::string& choice, const std::vector<c10::Device>& devices);

/// `text`: a file's content; `origin` names it in errors.
CostModel parse_cost_model(const std::string& text, const std::string& origin);

/// Where `recals.calibrate` writes for a kind of device: below XDG_CACHE_HOME, or ~/.cache.
std::string calibrated_path(const std::string& device);

/// By kind of device, as text.
const std::map<std::string, std::string>& built_in_cost_models();

double seconds_of(const Work& work, const CostModel& model);

} // namespace recals
