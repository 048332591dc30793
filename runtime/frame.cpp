#include "runtime/frame.h"

#include <algorithm>
#include <chrono>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>

#include "runtime/call_node.h"
#include "runtime/counters.h"
#include "runtime/owned_slots.h"

namespace recals {

/// Stands in for a dropped slot: knows how the slot showed its storage, and asks the frame for it.
class Frame::Hook : public torch::autograd::SavedVariableHooks {
 public:
  Hook(std::shared_ptr<Frame> frame, int reg, const at::Tensor& slot)
      : frame(std::move(frame)),
        reg(reg),
        sizes(slot.sizes().vec()),
        strides(slot.strides().vec()),
        offset(slot.storage_offset()),
        options(slot.options()),
        conjugated(slot.is_conj()),
        negated(slot.is_neg()) {}

  ~Hook() override {
    frame->release(*this);
  }
  void call_pack_hook(const at::Tensor&) override {}
  at::Tensor call_unpack_hook() override {
    return frame->demand(*this);
  }

  at::Tensor view_of(const at::Tensor& base) const {
    auto view = at::empty({0}, options);
    view.set_(base.storage(), offset, sizes, strides);
    view._set_conj(conjugated);
    view._set_neg(negated);
    return view;
  }

  std::shared_ptr<Frame> frame;
  int reg;
  int round_used = -1;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset;
  at::TensorOptions options;
  bool conjugated;
  bool negated;
};

namespace {

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

} // namespace

Frame::Frame(std::shared_ptr<const Program> program)
    : program_(std::move(program)),
      autocast_(AutocastState::current()),
      held_(program_->registers.size()),
      cached_(program_->registers.size()),
      slots_(program_->registers.size()),
      rng_(program_->nodes.size()),
      required_grad_(program_->nodes.size()),
      live_slots_(program_->components.size(), 0),
      round_(program_->components.size(), 0) {
  holders_.reserve(program_->registers.size());
  for (const auto& reg : program_->registers) {
    holders_.push_back(reg.holders);
  }
}

void Frame::before_node(int node, const std::vector<at::Tensor>& inputs) {
  const auto& info = program_->nodes[node];
  c10::Device device = c10::kCPU;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int reg = info.inputs[i];
    const auto& tensor = inputs[i];
    if (!tensor.defined()) {
      continue;
    }
    if (i == 0) {
      device = tensor.device();
    }
    if (!info.dropped.empty() && tensor.requires_grad()) {
      required_grad_[node].push_back(reg);
    }
    if (!program_->runs_again(reg) && !held_[reg]) {
      at::NoGradGuard no_grad;
      // detach() shares the version counter and drops the graph, which would otherwise own this frame.
      held_[reg] = Held{tensor.detach(), version_of(tensor)};
    }
  }
  if (info.random) {
    rng_[node] = RngState::of(inputs.empty() ? device_of_call(info) : device, program_->stands_for);
  }
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Frame::drop(int reg, const at::Tensor& slot) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto& slots = slots_[reg];
  ++slots.live;
  ++slots.waiting;
  slots.device = slot.device();
  slots.nbytes = slot.storage().nbytes();
  ++live_slots_[program_->registers[reg].component];
  ++counters().dropped_slots;
  return std::make_unique<Hook>(shared_from_this(), reg, slot);
}

void Frame::seal() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  sealed_ = true;
  for (size_t component = 0; component < live_slots_.size(); ++component) {
    if (live_slots_[component] == 0) {
      let_go(static_cast<int>(component));
    }
  }
}

at::Tensor Frame::demand(Hook& hook) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const int component = program_->registers[hook.reg].component;
  if (hook.round_used == round_[component]) {
    begin_round(component);
  }
  if (!cached_[hook.reg].tensor.defined()) {
    replay(hook.reg);
  }
  auto slot = hook.view_of(cached_[hook.reg].tensor);
  hook.round_used = round_[component];
  --slots_[hook.reg].waiting;
  count_down(hook.reg);
  return slot;
}

void Frame::release(Hook& hook) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const int component = program_->registers[hook.reg].component;
  auto& slots = slots_[hook.reg];
  --slots.live;
  if (hook.round_used != round_[component]) {
    --slots.waiting;
    count_down(hook.reg);
  }
  if (--live_slots_[component] == 0 && sealed_) {
    let_go(component);
  }
}

void Frame::begin_round(int component) {
  ++round_[component];
  for (int reg : program_->components[component].writes) {
    slots_[reg].waiting = slots_[reg].live;
    // What an unfinished round has left (a partial backward) is computed anew, so that the counts start together.
    cached_[reg] = Cached{};
  }
}

void Frame::let_go(int component) {
  const auto& info = program_->components[component];
  for (int reg : info.holds) {
    if (--holders_[reg] == 0) {
      held_[reg].reset();
    }
  }
  for (int reg : info.writes) {
    cached_[reg] = Cached{};
  }
  for (int node : info.nodes) {
    rng_[node].reset();
  }
}

std::vector<int> Frame::nodes_for(int reg) const {
  std::vector<int> nodes;
  std::vector<int> todo{program_->registers[reg].producer};
  while (!todo.empty()) {
    const int node = todo.back();
    todo.pop_back();
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
      continue;
    }
    nodes.push_back(node);
    for (int input : program_->nodes[node].inputs) {
      if (program_->runs_again(input) && !cached_[input].tensor.defined()) {
        todo.push_back(program_->registers[input].producer);
      }
    }
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

void Frame::replay(int reg) {
  RECORD_FUNCTION("recals::replay", std::vector<c10::IValue>());
  const auto start = std::chrono::steady_clock::now();
  at::NoGradGuard no_grad;
  AutocastGuard autocast(autocast_);
  ++counters().replays;
  for (int node : nodes_for(reg)) {
    run_again(node);
  }
  TORCH_CHECK(
      cached_[reg].tensor.defined(),
      "recals: the recomputation of ",
      program_->registers[reg].name,
      " did not save the same tensors as the forward");
  counters().recompute_nanoseconds +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

const at::Tensor& Frame::input(int node, int reg) const {
  if (program_->runs_again(reg)) {
    return cached_[reg].tensor;
  }
  const auto& held = held_[reg];
  TORCH_INTERNAL_ASSERT(held, "recals: nothing is held for ", program_->registers[reg].name);
  const auto& info = program_->nodes[node];
  TORCH_CHECK(
      held->version < 0 || held->version == version_of(held->tensor),
      "recals: ",
      program_->registers[reg].name,
      " was modified in place after the forward (version ",
      version_of(held->tensor),
      ", expected ",
      held->version,
      "), but ",
      info.name,
      " at ",
      where(info.source),
      " must read it again in the backward. Clone it before the modification, or modify it after the backward.");
  return held->tensor;
}

void Frame::run_again(int node) {
  // For who watches: profiles, and the dry run, which tells replays from the rest of the backward by it.
  RECORD_FUNCTION("recals::replay_node", std::vector<c10::IValue>{node});
  const auto& info = program_->nodes[node];
  const bool internals = std::any_of(
      info.dropped.begin(), info.dropped.end(), [&](const DroppedInternal& d) { return slots_[d.reg].waiting > 0; });
  std::vector<at::Tensor> inputs;
  inputs.reserve(info.inputs.size());
  for (int reg : info.inputs) {
    const bool given = program_->runs_again(reg) || held_[reg];
    auto tensor = given ? input(node, reg) : at::Tensor();
    if (internals && tensor.defined()) {
      // The op must save again what it saved in the forward.
      tensor = tensor.detach();
      const auto& flags = required_grad_[node];
      if (std::find(flags.begin(), flags.end(), reg) != flags.end()) {
        tensor.set_requires_grad(true);
      }
    }
    inputs.push_back(std::move(tensor));
  }

  std::optional<RngGuard> rng;
  if (rng_[node]) {
    rng.emplace(*rng_[node]);
  }
  const auto since = at::sequence_number::peek();
  std::vector<at::Tensor> outputs;
  {
    at::AutoGradMode grad_mode(internals);
    outputs = call_node(info, inputs, /*replay=*/true);
  }
  if (internals) {
    for_each_owned_slot(outputs, since, shown_by(info, inputs, outputs), [&](const OwnedSlot& slot) {
      for (const auto& dropped : info.dropped) {
        if (slot.internal == dropped.number && !cached_[dropped.reg].tensor.defined()) {
          // Without its history, which would hold all that this run has saved.
          cache(dropped.reg, slot.tensor.tensor_data());
        }
      }
    });
  }
  inputs.clear();
  for (int reg : info.inputs) {
    count_down(reg);
  }
  ++counters().recomputed_nodes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined()) {
      counters().recomputed_bytes += static_cast<int64_t>(outputs[i].nbytes());
      cache(info.outputs[i], outputs[i].tensor_data());
    }
  }
}

void Frame::cache(int reg, const at::Tensor& tensor) {
  if (!program_->runs_again(reg)) {
    return; // the forward's is held
  }
  const auto& slots = slots_[reg];
  const int remaining = program_->registers[reg].replay_reads + slots.waiting;
  if (remaining == 0) {
    return;
  }
  TORCH_CHECK(
      slots.live == 0 || (tensor.storage().nbytes() == slots.nbytes && tensor.device() == slots.device),
      "recals: ",
      program_->registers[reg].name,
      " was recomputed with ",
      tensor.storage().nbytes(),
      " bytes on ",
      tensor.device(),
      ", but the forward had ",
      slots.nbytes,
      " bytes on ",
      slots.device);
  cached_[reg] = Cached{tensor, remaining};
}

void Frame::count_down(int reg) {
  auto& cached = cached_[reg];
  if (cached.tensor.defined() && --cached.remaining == 0) {
    cached = Cached{};
  }
}

} // namespace recals
