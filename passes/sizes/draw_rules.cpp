#include "passes/sizes/draw_rules.h"

#include <algorithm>
#include <string>
#include <unordered_set>

namespace recals {

bool RngOptions::preserves(c10::Device device) const {
  if (!preserve || device.is_cpu() || !gpus) {
    return preserve;
  }
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  return std::find(gpus->begin(), gpus->end(), index) != gpus->end();
}

namespace {

/// cuDNN keeps the state of its recurrent dropout in memory of its own, which no generator's state brings back.
bool draws_from_a_library(const std::string& op, c10::Device device) {
  static const std::unordered_set<std::string> recurrent = {
      "aten::lstm",
      "aten::gru",
      "aten::rnn_tanh",
      "aten::rnn_relu",
      "aten::_cudnn_rnn",
      "aten::_cudnn_init_dropout_state"};
  return device.is_cuda() && recurrent.count(op) != 0;
}

} // namespace

void keep_draws(DryRun& sizes, const Program& program, const RngOptions& options) {
  auto& step = sizes.step;
  std::vector<bool> once(program.nodes.size(), false); // may not draw again
  for (auto& storage : step.storages) {
    if (storage.producer < 0) {
      continue;
    }
    const auto& node = program.nodes[storage.producer];
    const c10::Device device(step.devices[storage.device]);
    if (node.random && (!options.preserves(device) || draws_from_a_library(node.name, device))) {
      once[storage.producer] = true;
      if (step.nodes[storage.producer].recipe.reads.empty()) {
        storage.recomputable = false;
      }
    }
  }
  for (size_t n = 0; n < once.size(); ++n) {
    for (int storage : step.nodes[n].recipe.reads) {
      if (once[n]) {
        step.storages[storage].recomputable = false;
      }
    }
  }
}

} // namespace recals
