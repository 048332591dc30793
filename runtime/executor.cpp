#include "runtime/executor.h"

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>

#include "runtime/call_node.h"
#include "runtime/frame.h"
#include "runtime/mismatch.h"
#include "runtime/owned_slots.h"
#include "runtime/rng_state.h"

namespace recals {

namespace {

class Run {
 public:
  Run(std::shared_ptr<const Program> program, const c10::IValue& self, Observer* observer)
      : program_(std::move(program)),
        self_(self),
        observer_(observer),
        tensors_(program_->registers.size()),
        base_(program_->registers.size()) {
    for (size_t reg = 0; reg < base_.size(); ++reg) {
      base_[reg] = static_cast<int>(reg);
    }
    if (at::GradMode::is_enabled() && program_->drops) {
      frame_ = std::make_shared<Frame>(program_);
      check_hooks();
    }
  }

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    TORCH_CHECK(
        inputs.size() == program_->inputs.size(),
        "recals: the program takes ",
        program_->inputs.size(),
        " tensors, not ",
        inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      tensors_[program_->inputs[i]] = inputs[i];
    }
    for (const auto& attribute : program_->attributes) {
      auto value = attribute_at(self_, attribute.path, attribute.path.size());
      if (!value.isNone()) {
        tensors_[attribute.reg] = value.toTensor();
      }
    }
    if (observer_ != nullptr) {
      observer_->run_begins(tensors_);
    }
    for (size_t n = 0; n < program_->nodes.size(); ++n) {
      node(static_cast<int>(n));
    }
    std::vector<at::Tensor> outputs;
    for (int reg : program_->outputs) {
      outputs.push_back(tensors_[reg]);
    }
    tensors_.clear();
    if (frame_) {
      frame_->seal(std::move(base_));
    }
    return outputs;
  }

 private:
  /// Slots that somebody else's hooks have are not there to be dropped.
  void check_hooks() const {
    if (at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) {
      return;
    }
    report_mismatch(
        self_,
        Mismatch::Hooks,
        "recals: this training step holds more than its budget, because its saved tensors go to other hooks "
        "(torch.autograd.graph.save_on_cpu, saved_tensors_hooks), and those keep them. Call the module outside of that "
        "block.");
  }

  void node(int n) {
    const auto& node = program_->nodes[n];
    if (!node.set_attribute.empty()) {
      auto owner = attribute_at(self_, node.set_attribute, node.set_attribute.size() - 1);
      owner.toObject()->setAttr(node.set_attribute.back(), tensors_[node.inputs[0]]);
      bury(node);
      return;
    }
    std::vector<at::Tensor> inputs;
    inputs.reserve(node.inputs.size());
    for (int reg : node.inputs) {
      inputs.push_back(tensors_[reg]);
    }
    if (observer_ != nullptr) {
      observer_->node_begins(n);
    }
    const auto since = at::sequence_number::peek();
    auto outputs = call(n, inputs);
    find_bases(node, inputs, outputs);
    if (at::GradMode::is_enabled() && (observer_ != nullptr || may_drop(node))) {
      drop_slots(n, inputs, outputs, since);
    }
    if (frame_ && node.replayed) {
      frame_->after_node(n, outputs);
    }
    if (observer_ != nullptr) {
      observer_->node_ends(n, outputs);
    }
    inputs.clear();
    for (size_t i = 0; i < outputs.size(); ++i) {
      tensors_[node.outputs[i]] = std::move(outputs[i]);
    }
    bury(node);
  }

  std::vector<at::Tensor> call(int n, const std::vector<at::Tensor>& inputs) {
    const auto& node = program_->nodes[n];
    const bool replayed = frame_ && node.replayed;
    if (replayed) {
      frame_->before_node(n, inputs);
    }
    if (!node.random) {
      return call_node(node, inputs, /*replay=*/false);
    }
    const auto own = own_generator(node, self_);
    if (program_->meta) {
      if (replayed) {
        frame_->before_draw_on_meta(n, own.defined() ? own.device() : device_of_draw(node, inputs));
      }
      return call_node(node, inputs, /*replay=*/false);
    }
    const auto generator = own.defined() ? own : RngState::default_generator(device_of_draw(node, inputs));
    const DrawLock lock(generator);
    if (replayed) {
      frame_->before_draw(n, generator);
    }
    auto outputs = call_node(node, inputs, /*replay=*/false, own);
    if (replayed) {
      frame_->after_draw(n);
    }
    return outputs;
  }

  /// Two registers on one storage: the one made first stands for it, and carries the plan's mark.
  void find_bases(
      const ProgramNode& node,
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& outputs) {
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!outputs[o].defined() || !outputs[o].has_storage()) {
        continue;
      }
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].defined() && inputs[i].has_storage() && outputs[o].is_alias_of(inputs[i])) {
          base_[node.outputs[o]] = base_[node.inputs[i]];
          break;
        }
      }
    }
  }

  bool may_drop(const ProgramNode& node) const {
    if (!frame_) {
      return false;
    }
    auto dropped = [&](int reg) { return program_->registers[base_[reg]].dropped(); };
    return !node.internals.empty() || std::any_of(node.inputs.begin(), node.inputs.end(), dropped) ||
        std::any_of(node.outputs.begin(), node.outputs.end(), dropped);
  }

  void drop_slots(
      int n,
      const std::vector<at::Tensor>& inputs,
      const std::vector<at::Tensor>& outputs,
      uint64_t since) {
    const auto& node = program_->nodes[n];
    // All that is packed is packed before any of it goes, as the plan counts it.
    std::vector<std::pair<torch::autograd::SavedVariable*, std::unique_ptr<torch::autograd::SavedVariableHooks>>> hooks;
    for_each_owned_slot(outputs, since, shown_by(node, inputs, outputs), [&](const OwnedSlot& slot) {
      int reg = slot.reg >= 0 ? base_[slot.reg] : -1;
      for (const auto& internal : node.internals) {
        if (slot.internal == internal.number) {
          reg = internal.reg;
        }
      }
      const int shown = slot.reg >= 0 ? base_[slot.reg] : -1;
      if (observer_ != nullptr) {
        observer_->slot_met({n, slot.tensor, shown, slot.internal, slot.node.name() + "." + slot.member});
      }
      if (frame_ && reg >= 0 && program_->registers[reg].dropped()) {
        hooks.emplace_back(&slot.saved, frame_->drop(reg, slot.tensor, n));
        return;
      }
      if (frame_ && reg >= 0 && node.recipe != nullptr && reg == node.recipe_reg) {
        frame_->keep_internal(reg, slot.tensor);
      }
      if (observer_ != nullptr) {
        const auto saved_by = slot.node.name() + "." + slot.member;
        if (auto recording = observer_->slot_saved({n, slot.tensor, shown, slot.internal, saved_by})) {
          hooks.emplace_back(&slot.saved, std::move(recording));
        }
      }
    });
    for (auto& [saved, hook] : hooks) {
      saved->register_hooks(std::move(hook));
    }
  }

  void bury(const ProgramNode& node) {
    for (int reg : node.dead) {
      tensors_[reg] = at::Tensor();
    }
  }

  std::shared_ptr<const Program> program_;
  const c10::IValue& self_;
  Observer* observer_;
  std::shared_ptr<Frame> frame_;
  std::vector<at::Tensor> tensors_; ///< per register
  std::vector<int> base_; ///< per register: the first register on the same storage
};

} // namespace

std::vector<at::Tensor> run(
    const std::shared_ptr<const Program>& program,
    const c10::IValue& self,
    const std::vector<at::Tensor>& inputs,
    Observer* observer) {
  return Run(program, self, observer)(inputs);
}

} // namespace recals
