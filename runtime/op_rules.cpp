#include "runtime/op_rules.h"

#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>

namespace recals {

using torch::jit::Node;

namespace {

bool has_tag(const Node& node, at::Tag tag) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr) {
    return false;
  }
  auto handle = c10::Dispatcher::singleton().findSchema({schema->name(), schema->overload_name()});
  return handle && handle->hasTag(tag);
}

/// Position of running mean and variance, and of the flag that makes the kernel update them.
struct RunningStatistics {
  size_t mean;
  size_t variance;
  size_t training;
};

const std::unordered_map<std::string, RunningStatistics>& running_statistics() {
  static const std::unordered_map<std::string, RunningStatistics> table = {
      {"aten::batch_norm", {3, 4, 5}},
      {"aten::native_batch_norm", {3, 4, 5}},
      {"aten::_batch_norm_impl_index", {3, 4, 5}},
      {"aten::cudnn_batch_norm", {3, 4, 5}},
      {"aten::instance_norm", {3, 4, 5}},
  };
  return table;
}

} // namespace

bool is_random(const Node& node) {
  return has_tag(node, at::Tag::nondeterministic_seeded);
}

bool may_run_twice(const Node& node) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr || schema->is_mutable() || node.hasSideEffects()) {
    return false;
  }
  const std::string space = node.kind().ns().toUnqualString();
  if (space == "c10d" || space == "_c10d_functional" || space == "c10d_functional") {
    return false;
  }
  for (auto* input : node.inputs()) {
    const auto& type = input->type();
    if (type->kind() == c10::TypeKind::GeneratorType) {
      return false;
    }
  }
  return true;
}

std::vector<size_t> written_arguments(const std::string& op, const std::function<c10::IValue(size_t)>& constant) {
  auto row = running_statistics().find(op);
  if (row == running_statistics().end()) {
    return {};
  }
  auto training = constant(row->second.training);
  if (training.isBool() && !training.toBool()) {
    return {};
  }
  return {row->second.mean, row->second.variance};
}

} // namespace recals
