/// Registers the recals:: ops. Loading this library (`import recals`, dlopen, linking) is all a rewritten file needs.

#include "runtime/ops.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/method.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/library.h>

#include "runtime/autocast_state.h"
#include "runtime/counters.h"
#include "runtime/describe.h"
#include "runtime/executor.h"
#include "runtime/mismatch.h"
#include "runtime/step_check.h"

namespace recals {

void ops::check_format(int64_t format) {
  TORCH_CHECK(
      format >= kOldestFormatVersion && format <= kFormatVersion,
      "recals: this module was written in format ",
      format,
      ", but this library reads formats ",
      kOldestFormatVersion,
      " to ",
      kFormatVersion,
      ". Restore the plain module with the version of recals that wrote it, and call recals.optimize again.");
}

const std::vector<std::string>& ops::on_copy() {
  // Those whose in-place derivative reads the result where the other one reads the input.
  static const std::vector<std::string> names = {"elu", "celu", "selu"};
  return names;
}

namespace {

using torch::jit::Stack;

/// Programs by graph. A program keeps its graph alive, so an address is not reused while it is here; programs whose
/// module is gone are dropped when a new one comes.
std::shared_ptr<const Program> program_of(const std::shared_ptr<torch::jit::Graph>& graph) {
  static std::mutex mutex;
  static std::unordered_map<const torch::jit::Graph*, std::shared_ptr<const Program>> programs;
  std::lock_guard<std::mutex> lock(mutex);
  auto known = programs.find(graph.get());
  if (known != programs.end()) {
    return known->second;
  }
  for (auto it = programs.begin(); it != programs.end();) {
    const bool unused = it->second.use_count() == 1 && it->second->graphs.front().use_count() == 1;
    it = unused ? programs.erase(it) : std::next(it);
  }
  auto program = Program::compile(graph);
  programs.emplace(graph.get(), program);
  return program;
}

torch::jit::Function& method_of(const char* op, const c10::IValue& self, const std::string& method) {
  TORCH_CHECK(self.isObject(), op, ": self must be a module, not ", self.tagKind());
  auto* function = self.toObjectRef().type()->findMethod(method);
  TORCH_CHECK(
      function,
      "recals: the module ",
      self.type()->str(),
      " has no method ",
      method,
      ", which ",
      op,
      " is to call. torch.jit.freeze takes it away: freeze the plain module, recals.restore(module).");
  return *function;
}

void plain_kernel(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto arguments = torch::jit::pop(*stack);
  const auto method = torch::jit::pop(*stack).toStringRef();
  const auto self = torch::jit::pop(*stack);
  auto& function = method_of("recals::plain", self, method);
  TORCH_CHECK(arguments.isTuple(), "recals::plain: the arguments must be a tuple, not ", arguments.tagKind());
  Stack call{self};
  const auto& elements = arguments.toTupleRef().elements();
  call.insert(call.end(), elements.begin(), elements.end());
  function.run(call);
  torch::jit::push(*stack, torch::jit::pop(call));
}

void checkpoint_kernel(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  auto inputs = torch::jit::pop(*stack).toTensorVector();
  auto method = torch::jit::pop(*stack).toStringRef();
  auto self = torch::jit::pop(*stack);
  const auto& function = method_of("recals::checkpoint", self, method);
  ++counters().calls;
  const auto program = program_of(torch::jit::toGraphFunction(function).graph());
  const auto check = check_for(*program, self);
  auto outputs = run(program, self, inputs, check.get());
  if (check) {
    finish_check(*check, *program, self);
  }
  torch::jit::push(*stack, std::move(outputs));
}

std::string attribute_text(const c10::IValue& self, const std::string& path) {
  auto value = self;
  size_t begin = 0;
  while (begin <= path.size()) {
    const auto end = std::min(path.find('.', begin), path.size());
    value = value.toObjectRef().getAttr(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return describe(value);
}

/// An attribute that is not as the plan was made for.
struct Changed {
  std::string path;
  std::string planned;
  std::string now;
};

bool requires_grad(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.toTensor().defined() && value.toTensor().requires_grad();
  }
  if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    return std::any_of(elements.begin(), elements.end(), requires_grad);
  }
  if (value.isList()) {
    const auto elements = value.toListRef();
    return std::any_of(elements.begin(), elements.end(), requires_grad);
  }
  if (value.isGenericDict()) {
    const auto entries = value.toGenericDict();
    return std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return requires_grad(entry.value()); });
  }
  if (value.isObject()) {
    const auto& slots = value.toObjectRef().slots();
    return std::any_of(slots.begin(), slots.end(), requires_grad);
  }
  return false;
}

/// A step that autograd records, and that the plan is not for. (In grad mode, with something to differentiate: what is not
/// recorded holds nothing for a backward.)
void report_changed(const c10::IValue& self, const c10::IValue& inputs, const std::vector<Changed>& changed) {
  if (!requires_grad(inputs) && !requires_grad(self)) {
    return;
  }
  const auto& first = changed.front();
  const auto others = changed.size() - 1;
  report_mismatch(
      self,
      Mismatch::Attributes,
      c10::str(
          "recals: this training step runs without its budget, because the plan was made for a module in another "
          "state: '",
          first.path,
          "' was ",
          first.planned,
          " and is ",
          first.now,
          " now",
          others == 0 ? "" : c10::str(", and ", others, others == 1 ? " other attribute differs" : " others differ"),
          ". Call recals.optimize with the module as it is trained (train(), eval() and attributes included); if this "
          "was to evaluate, call it under torch.no_grad()."));
}

/// The same inputs, none of which requires grad: such a step holds less.
std::string without_grad(std::string text) {
  const std::string mark = "+grad";
  for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
    text.erase(at, mark.size());
  }
  return text;
}

/// What may not be seen at once in two texts that differ.
std::string why_different(const std::string& expected, const std::string& actual) {
  if (without_grad(actual) == without_grad(expected)) {
    return ". Inputs marked +grad require a gradient, which takes memory that the plan does not count: call "
           "recals.optimize with example inputs that require grad as in training";
  }
  const auto same_inputs = [&](const std::string& one, const std::string& other) {
    return without_grad(one) == without_grad(other);
  };
  const auto planned = BackendState::parse(expected).first;
  const auto met = BackendState::parse(actual).first;
  if (same_inputs(planned, met)) {
    return ". With other switches of torch's backends (torch.backends, sdpa_kernel, use_deterministic_algorithms, "
           "set_default_dtype) a step runs other kernels: call recals.optimize under those that the forward runs under";
  }
  if (same_inputs(AutocastState::parse(planned).first, AutocastState::parse(met).first)) {
    return ". Under autocast a step casts, and holds something else: call recals.optimize inside the torch.autocast "
           "block "
           "that the forward runs in, or outside of any";
  }
  return "";
}

/// The parameters and buffers are those that were planned for; fewer may require grad.
void check_tensors(const std::string& expected, const std::string& actual) {
  auto split = [](const std::string& text) { return text.rfind(", "); };
  auto require_grad = [&](const std::string& text) { return std::stoll(text.substr(split(text) + 2)); };
  TORCH_CHECK(
      actual == expected ||
          (actual.substr(0, split(actual)) == expected.substr(0, split(expected)) &&
           require_grad(actual) <= require_grad(expected)),
      "recals: the plan was made for a module with ",
      expected,
      ", but it has ",
      actual,
      " now. A budget holds for what was planned: call recals.optimize again after parameters or buffers have been "
      "added, unfrozen, or changed in shape or dtype.");
}

void enter_kernel(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const auto format = torch::jit::pop(*stack).toInt();
  const auto attributes = torch::jit::pop(*stack).toList();
  const auto expected = torch::jit::pop(*stack).toStringRef();
  const auto inputs = torch::jit::pop(*stack);
  const auto self = torch::jit::pop(*stack);
  ops::check_format(format);
  // A frozen module (torch.jit.freeze) has constants in place of parameters, and only its plain ops.
  bool planned = at::GradMode::is_enabled() && self.toObjectRef().type()->hasAttribute(ops::kPlanAttribute);
  auto order = DictOrder::Sorted;
  if (planned) {
    std::vector<Changed> changed;
    for (const c10::IValue& attribute : attributes) {
      const auto& text = attribute.toStringRef();
      if (text == ops::kDictsInOrder) {
        order = DictOrder::Stored;
        continue;
      }
      const auto equals = text.find('=');
      const auto path = text.substr(0, equals);
      if (path == "tensors") { // the last one
        if (changed.empty()) {
          check_tensors(text, describe_tensors(self));
        }
        continue;
      }
      auto now = attribute_text(self, path);
      if (now != text.substr(equals + 1)) {
        changed.push_back({path, text.substr(equals + 1), std::move(now)});
      }
    }
    planned = changed.empty();
    if (!planned) {
      report_changed(self, inputs, changed);
    }
  }
  if (planned) {
    const bool with_autocast = format >= ops::kFirstFormatWithAutocast;
    auto text_of_inputs = [&](DictOrder dicts) {
      return with_autocast ? describe_step(self, inputs, std::nullopt, dicts) : describe(inputs, std::nullopt, dicts);
    };
    const auto actual = text_of_inputs(order);
    auto fits = [&](const std::string& text) { return text == expected || text == without_grad(expected); };
    // Older plans have dicts as they were stored.
    TORCH_CHECK(
        fits(actual) || fits(text_of_inputs(DictOrder::Stored)),
        "recals: the plan was made for inputs ",
        expected,
        ", but this training step got ",
        actual,
        why_different(expected, actual),
        ". A budget holds for what was planned: call recals.optimize again with inputs like these, or run it under "
        "torch.no_grad(), where any input is accepted.");
  } else {
    ++counters().plain_calls;
  }
  torch::jit::push(*stack, planned);
}

/// A mark does nothing when it is run on its own: it returns its first argument if it returns one.
void mark_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size() - op.schema().returns().size());
}

void on_copy_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const auto& name = op.schema().name(); // recals::elu
  const auto in_place =
      c10::Dispatcher::singleton().findSchemaOrThrow(("aten" + name.substr(name.find("::")) + "_").c_str(), "");
  auto& self = torch::jit::peek(*stack, 0, op.schema().arguments().size());
  self = self.toTensor().clone();
  in_place.callBoxed(*stack);
}

} // namespace

// CompositeImplicitAutograd: the ops inside build the autograd graph themselves.
TORCH_LIBRARY(recals, m) {
  auto define = [&](const char* schema) {
    // Conservative: no pass may merge, move or remove a call.
    auto parsed = torch::jit::parseSchema(schema);
    parsed.setAliasAnalysis(c10::AliasAnalysisKind::CONSERVATIVE);
    m.def(std::move(parsed));
  };
  define("enter(Any self, Any inputs, str expected, str[] attributes, int format) -> bool");
  define("plain(Any self, str method, Any arguments) -> Any");
  define("checkpoint(Any self, str method, Tensor[] inputs) -> Tensor[]");
  define("keep(Tensor value, int bytes) -> Tensor");
  define("keep_internal(Tensor output, int[] numbers, int bytes) -> Tensor");
  define("recompute(Tensor value, int bytes, int retained_from=2147483647) -> Tensor");
  define("region(str name) -> ()");
  define("end_region() -> ()");
  define("recompute_internal(Tensor output, int[] numbers, int bytes, int retained_from=2147483647) -> Tensor");
  define("pack(Tensor value, str packer, int bytes, int packed_bytes, int retained_from=2147483647) -> Tensor");
  define(
      "pack_internal(Tensor output, int[] numbers, str packer, int bytes, int packed_bytes, "
      "int retained_from=2147483647) -> Tensor");
  m.def("elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor");
  m.def("celu(Tensor self, Scalar alpha=1.0) -> Tensor");
  m.def("selu(Tensor self) -> Tensor");
}

TORCH_LIBRARY_IMPL(recals, CompositeImplicitAutograd, m) {
  m.impl("enter", torch::CppFunction::makeFromBoxedFunction<&enter_kernel>());
  m.impl("plain", torch::CppFunction::makeFromBoxedFunction<&plain_kernel>());
  m.impl("checkpoint", torch::CppFunction::makeFromBoxedFunction<&checkpoint_kernel>());
  for (const char* mark :
       {"keep", "keep_internal", "recompute", "recompute_internal", "pack", "pack_internal", "region", "end_region"}) {
    m.impl(mark, torch::CppFunction::makeFromBoxedFunction<&mark_kernel>());
  }
  for (const auto& op : ops::on_copy()) {
    m.impl(op.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_copy_kernel>());
  }
}

} // namespace recals
