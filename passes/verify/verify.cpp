#include "passes/verify/verify.h"

#include <algorithm>
#include <unordered_map>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/constants.h>

#include "runtime/ops.h"
#include "runtime/program.h"

namespace recals {

using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

namespace {

std::string describe(const Node* node) {
  const auto place = where(node);
  return std::string(node->kind().toQualString()) + (place.empty() ? "" : " at " + place);
}

bool is_mark(const Node* node) {
  return ops::is_mark(node->kind());
}

bool is_boundary(const Node* node) {
  return is_mark(node) || node->kind() == ops::region || node->kind() == ops::end_region;
}

bool is_tensor(const Value* value) {
  return value->type()->isSubtypeOf(*c10::TensorType::get());
}

void verify_pack(const Node* node) {
  const size_t first = node->kind() == ops::pack ? 1 : 2;
  const auto form = torch::jit::toIValue(node->input(first));
  const auto bytes = torch::jit::toIValue(node->input(first + 1));
  const auto packed = torch::jit::toIValue(node->input(first + 2));
  const auto& known = packers();
  TORCH_CHECK(
      form && std::any_of(known.begin(), known.end(), [&](const Packer& p) { return p.name == form->toStringRef(); }),
      "recals: B5: ",
      describe(node),
      " names no packer");
  TORCH_CHECK(bytes && packed && packed->toInt() < bytes->toInt(), "recals: B5: ", describe(node), " saves nothing");
}

void verify_block(const Block* block, const torch::jit::Module& module) {
  for (auto* node : const_cast<Block*>(block)->nodes()) {
    TORCH_CHECK(
        node->kind() != ops::region && node->kind() != ops::end_region,
        "recals: L1: ",
        describe(node),
        " is left after lowering");
    if (node->kind() == ops::checkpoint) {
      auto name = torch::jit::toIValue(node->input(1));
      TORCH_CHECK(
          name && module.find_method(name->toStringRef()),
          "recals: L2: ",
          describe(node),
          " names no method of the module");
    }
    for (auto* inner : node->blocks()) {
      verify_block(inner, module);
    }
  }
}

} // namespace

void verify_flat(const Graph& graph) {
  const auto inputs = graph.inputs();
  TORCH_CHECK(
      !inputs.empty() && inputs[0]->type()->cast<c10::ClassType>(), "recals: F1: the first input is not the module");
  for (size_t i = 1; i < inputs.size(); ++i) {
    TORCH_CHECK(is_tensor(inputs[i]), "recals: F1: input %", inputs[i]->debugName(), " is no tensor");
  }
  for (const auto* node : graph.nodes()) {
    if (is_boundary(node)) {
      continue;
    }
    TORCH_CHECK(node->blocks().empty(), "recals: F2: ", describe(node), " has blocks");
    const auto kind = node->kind();
    const bool structural = kind == c10::prim::Constant || kind == c10::prim::GetAttr || kind == c10::prim::SetAttr ||
        kind == c10::prim::ListConstruct || kind == c10::prim::ListUnpack;
    TORCH_CHECK(structural || node->maybeSchema() != nullptr, "recals: F3: ", describe(node), " has no schema");
    if (!structural && node->outputs().size() == 1 &&
        node->output()->type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      TORCH_CHECK(
          node->next()->kind() == c10::prim::ListUnpack && node->next()->input() == node->output(),
          "recals: F5: the list of ",
          describe(node),
          " is not unpacked at once");
    }
  }
  for (const auto* output : graph.outputs()) {
    TORCH_CHECK(is_tensor(output), "recals: F4: output %", output->debugName(), " is no tensor");
  }
}

void verify_boundaries(const Graph& graph) {
  verify_flat(graph);
  const Node* open = nullptr;
  auto name = [](const Node* region) {
    auto constant = region == nullptr ? std::nullopt : torch::jit::toIValue(region->input());
    return constant && constant->isString() ? constant->toStringRef() : std::string();
  };
  bool empty = true;
  std::unordered_map<const Value*, const Node*> marked;
  for (const auto* node : graph.nodes()) {
    if (node->kind() == ops::region) {
      TORCH_CHECK(open == nullptr, "recals: B1: region '", name(node), "' begins inside another");
      open = node;
      empty = true;
    } else if (node->kind() == ops::end_region) {
      TORCH_CHECK(open != nullptr, "recals: B1: a region ends that did not begin");
      TORCH_CHECK(!empty, "recals: B1: region '", name(open), "' is empty");
      open = nullptr;
    } else if (is_mark(node)) {
      const bool keeps = node->kind() == ops::keep || node->kind() == ops::keep_internal;
      TORCH_CHECK(keeps || open != nullptr, "recals: B2: ", describe(node), " stands outside a region");
      const auto* value = node->input(0);
      while (is_mark(value->node())) {
        value = value->node()->input(0);
      }
      if (!ops::marks_internal(node->kind())) {
        const auto [first, alone] = marked.emplace(value, node);
        TORCH_CHECK(
            alone,
            "recals: B3: %",
            value->debugName(),
            " has two marks, ",
            describe(first->second),
            " and ",
            describe(node));
      }
      if (node->kind() == ops::pack || node->kind() == ops::pack_internal) {
        verify_pack(node);
      }
      const auto* before = node->prev();
      while (before != value->node() && (is_mark(before) || before->kind() == c10::prim::ListUnpack)) {
        before = before->prev();
      }
      TORCH_CHECK(
          before == value->node() || before->kind() == ops::region,
          "recals: B4: ",
          describe(node),
          " does not follow the node that made %",
          value->debugName());
    } else {
      empty = false;
    }
  }
  TORCH_CHECK(open == nullptr, "recals: B1: region '", name(open), "' does not end");
}

void verify_lowered(const torch::jit::Module& module, const std::string& method) {
  for (const auto& name : {method, "recals_" + method + "_plain", "recals_" + method + "_step"}) {
    TORCH_CHECK(module.find_method(name), "recals: L3: the rewritten module has no method ", name);
  }
  for (auto* function : module.type()->methods()) {
    verify_block(torch::jit::toGraphFunction(*function).graph()->block(), module);
  }
}

} // namespace recals
