#include "passes/sizes/dry_run.h"

#include <algorithm>

#include <torch/csrc/autograd/autograd.h>

#include "passes/meta/autocast.h"
#include "passes/meta/failures.h"
#include "passes/meta/meta_kernels.h"
#include "passes/meta/no_hooks.h"
#include "passes/sizes/recorder.h"
#include "runtime/executor.h"

namespace recals {

namespace {

/// A step may assign attributes of the module. When this goes, they are as before, and the next run begins as this one did.
class AttributesAsBefore {
 public:
  AttributesAsBefore(const Program& program, const c10::IValue& self) {
    for (const auto& node : program.nodes) {
      if (!node.set_attribute.empty()) {
        auto owner = self;
        for (size_t i = 0; i + 1 < node.set_attribute.size(); ++i) {
          owner = owner.toObjectRef().getAttr(node.set_attribute[i]);
        }
        const auto& name = node.set_attribute.back();
        before_.push_back({owner.toObject(), name, owner.toObjectRef().getAttr(name)});
      }
    }
  }
  ~AttributesAsBefore() {
    for (auto& attribute : before_) {
      attribute.owner->setSlot(attribute.owner->type()->getAttributeSlot(attribute.name), std::move(attribute.value));
    }
  }
  AttributesAsBefore(const AttributesAsBefore&) = delete;
  AttributesAsBefore& operator=(const AttributesAsBefore&) = delete;

 private:
  struct Attribute {
    c10::intrusive_ptr<c10::ivalue::Object> owner;
    std::string name;
    c10::IValue value;
  };
  std::vector<Attribute> before_;
};

/// Torch's words on what cannot be run on meta tensors are for the authors of compilers.
void run_backward(const at::Tensor& loss, const Recorder& recorder) {
  auto fail = [&](const std::string& what) {
    const auto& op = recorder.failed_backward_op();
    TORCH_CHECK(what.rfind("recals:", 0) != 0, what); // said already
    TORCH_CHECK(false, "recals: ", op.empty() ? "the backward" : op, ", ", failure_in_words(what, false));
  };
  try {
    torch::autograd::backward({loss}, {}, /*retain_graph=*/false);
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

/// "ReluBackward0 (of layer1.relu, model.py:12)"
std::string autograd_node_in_words(const DryRun& run, int backward_op) {
  std::string words = run.step.backward_ops.at(backward_op);
  const auto& moments = run.ledger.moments;
  const auto moment = std::find_if(moments.begin(), moments.end(), [&](const Moment& m) {
    return m.phase == Phase::Backward && m.backward_op == backward_op;
  });
  if (moment == moments.end() || moment->node < 0) {
    return words;
  }
  const auto& node = run.step.nodes.at(moment->node);
  std::string place = node.module.empty() ? "" : "of " + node.module;
  place += place.empty() || node.where.empty() ? "" : ", ";
  place += node.where;
  return place.empty() ? words : words + " (" + place + ")";
}

} // namespace

std::string overlap_in_words(const DryRun& run, size_t device) {
  const auto& overlap = run.overlaps.at(device);
  return overlap ? autograd_node_in_words(run, overlap->one) + " and " + autograd_node_in_words(run, overlap->other) +
          " may run at the same time"
                 : "";
}

DryRun dry_run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    const std::vector<Target>& targets,
    const Loss& loss,
    bool measured) {
  const MetaKernels kernels(program->devices);
  const NoSavedTensorHooks no_hooks;
  at::AutoGradMode grad_mode(true);
  const AttributesAsBefore attributes(*program, self);
  Recorder recorder(*program, targets, measured);
  {
    MetaAllocationScope scope(recorder);
    AutocastOnMeta autocast;
    auto outputs = run(program, self, inputs, &recorder);
    recorder.forward_ends(outputs);
    LossOf loss_of(loss, outputs, program->devices);
    const auto root = loss_of();
    autocast.leave_block();
    run_backward(root, recorder);
  }
  return recorder.finish();
}

} // namespace recals
