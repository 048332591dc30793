#include "runtime/op_rules.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

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

/// Ops that draw nothing at a probability of 0, and those that draw nothing outside training. (native_dropout draws at 0.)
const std::unordered_set<std::string>& quiet_at_zero() {
  static const std::unordered_set<std::string> table = {
      "aten::dropout",
      "aten::dropout_",
      "aten::feature_dropout",
      "aten::feature_dropout_",
      "aten::alpha_dropout",
      "aten::alpha_dropout_",
      "aten::feature_alpha_dropout",
      "aten::feature_alpha_dropout_",
      "aten::scaled_dot_product_attention",
      "aten::lstm",
      "aten::gru",
      "aten::rnn_tanh",
      "aten::rnn_relu",
  };
  return table;
}

const std::unordered_set<std::string>& quiet_outside_training() {
  static const std::unordered_set<std::string> table = [] {
    auto ops = quiet_at_zero();
    ops.insert({"aten::native_dropout", "aten::rrelu", "aten::rrelu_"});
    return ops;
  }();
  return table;
}

/// Made of other ops, but indifferent: they show or copy what they are given, or pass on to one op with a kernel.
const std::unordered_set<std::string>& indifferent() {
  static const std::unordered_set<std::string> table = {
      "aten::broadcast_to", "aten::chunk",   "aten::concat",  "aten::contiguous",  "aten::dropout",
      "aten::expand_as",    "aten::flatten", "aten::hstack",  "aten::log_softmax", "aten::mT",
      "aten::movedim",      "aten::narrow",  "aten::numpy_T", "aten::reshape",     "aten::reshape_as",
      "aten::softmax",      "aten::split",   "aten::square",  "aten::swapaxes",    "aten::swapdims",
      "aten::tensor_split", "aten::to",      "aten::type_as", "aten::unflatten",   "aten::view_as",
      "aten::vstack",       "aten::where",
  };
  return table;
}

/// Have kernels of their own, which ask: those of convolutions leave out ways without a backward on some machines.
const std::unordered_set<std::string>& asking_kernels() {
  static const std::unordered_set<std::string> table = {"aten::convolution", "aten::_convolution"};
  return table;
}

} // namespace

bool asks_for_grad(const std::string& qualified, const std::string& overload) {
  if (asking_kernels().count(qualified) > 0) {
    return true;
  }
  // What an op of somebody else does nobody knows; torch's own, if they are not made of others, pass autograd on their way
  // to a kernel that knows nothing of it.
  const auto handle = c10::Dispatcher::singleton().findSchema({qualified, overload});
  const bool composite = !handle || qualified.rfind("aten::", 0) != 0 ||
      handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  return composite && indifferent().count(qualified) == 0;
}

bool is_generator(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }
  return type.kind() == c10::TypeKind::GeneratorType;
}

bool draws(const Node& node, const std::function<c10::IValue(size_t)>& constant) {
  const auto* schema = node.maybeSchema();
  if (schema == nullptr) {
    return false;
  }
  const auto& arguments = schema->arguments();
  if (!has_tag(node, at::Tag::nondeterministic_seeded)) {
    // An op of a user without torch's tag.
    return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return is_generator(*a.type()); });
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& name = arguments[i].name();
    const bool probability = name == "p" || name == "dropout" || name == "dropout_p";
    if (probability && quiet_at_zero().count(schema->name()) != 0) {
      const auto p = constant(i);
      if (p.isScalar() && p.toScalar().toDouble() == 0) {
        return false;
      }
    }
    if ((name == "train" || name == "training") && quiet_outside_training().count(schema->name()) != 0) {
      const auto training = constant(i);
      if (training.isBool() && !training.toBool()) {
        return false;
      }
    }
  }
  return true;
}

bool communicates(const std::string& qualified) {
  static const std::unordered_set<std::string> namespaces = {
      "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"};
  return namespaces.count(qualified.substr(0, qualified.find("::"))) > 0;
}

bool may_run_twice(const Node& node) {
  const auto* schema = node.maybeSchema();
  return schema != nullptr && !schema->is_mutable() && !node.hasSideEffects() && !communicates(schema->name());
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

bool saves_no_statistics(const std::string& op) {
  return op != "aten::instance_norm";
}

} // namespace recals
