#include "passes/sizes/recorder.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "passes/meta/autocast.h"
#include "passes/meta/in_place_sums.h"
#include "passes/sizes/zeros.h"
#include "runtime/op_rules.h"
#include "runtime/rng_state.h"

namespace recals {

using plan::BackwardEvent;

namespace {

/// Records when its slot is used and released. Holds the tensor as the slot itself would.
class RecordingHook : public torch::autograd::SavedVariableHooks {
 public:
  RecordingHook(std::weak_ptr<Recorder*> recorder, int slot) : recorder_(std::move(recorder)), slot_(slot) {}
  ~RecordingHook() override {
    tell(BackwardEvent::Kind::Release);
  }
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor;
  }
  at::Tensor call_unpack_hook() override {
    tell(BackwardEvent::Kind::Use);
    return tensor_;
  }

 private:
  void tell(BackwardEvent::Kind kind) {
    if (auto recorder = recorder_.lock()) {
      (*recorder)->slot_event(kind, slot_);
    }
  }

  std::weak_ptr<Recorder*> recorder_;
  int slot_;
  at::Tensor tensor_;
};

thread_local Recorder* recording = nullptr;
/// Kernels call further ops on meta that the device's kernel does not; only the outermost counts.
thread_local int kernel_depth = 0;
/// Hooks may outlive the recorder if an exception leaves the run.
thread_local std::shared_ptr<Recorder*> recording_token;

struct KernelContext : public at::ObserverContext {
  c10::OperatorName op{"", ""};
  std::vector<c10::IValue> inputs;
  bool counts = false;
  bool replays = false;
  std::optional<InPlaceSums> sum;
};

/// Note [Sums of gradients]
/// Where two gradients meet, the engine adds the second to the first in place if nobody else holds that one. What torch
/// takes for a subclass of tensors, meta tensors among them, it adds out of place. So here such a sum is made in place, by
/// the engine's own condition (can_accumulate_inplace of torch/csrc/autograd/input_buffer.cpp), in which one holder more is
/// this call.
bool is_made_in_place(const at::RecordFunction& function) {
  if (c10::GradMode::is_enabled() || function.operator_name() != c10::OperatorName("aten::add", "Tensor")) {
    return false;
  }
  const auto& first = function.inputs().at(0);
  if (!first.isTensor()) {
    return false;
  }
  const auto& sum = first.toTensor();
  return sum.defined() && sum.is_meta() && sum.has_storage() && !sum._is_zerotensor() &&
      sum.is_non_overlapping_and_dense() && sum.use_count() == 2 && sum.storage().use_count() == 1;
}

/// An op of another library that says nothing of what it is made of.
bool is_opaque(const c10::OperatorHandle& op) {
  return op.operator_name().name.rfind("aten::", 0) != 0 &&
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}

/// What the device runs as one: an op with a kernel of its own. Composite ops are made of others, which are seen themselves.
bool is_kernel(const c10::OperatorName& name) {
  static thread_local std::unordered_map<std::string, bool> known;
  const auto key = name.name + "." + name.overload_name;
  auto found = known.find(key);
  if (found == known.end()) {
    auto handle = c10::Dispatcher::singleton().findOp(name);
    const bool kernel = handle && handle->hasSchema() &&
        (handle->hasKernelForDispatchKey(c10::DispatchKey::CPU) || is_opaque(*handle) || runs_as_one(name.name) ||
         looks_for_zeros(name.name));
    found = known.emplace(key, kernel).first;
  }
  return found->second;
}

/// Torch swallows what a callback throws, so it is kept for the end of the run.
template <typename F>
void guarded(F callback) {
  try {
    callback();
  } catch (...) {
    if (recording != nullptr) {
      recording->failed(std::current_exception());
    }
  }
}

void kernel_begins(const at::RecordFunction& function, KernelContext* context) {
  const auto name = function.operator_name();
  if (recording != nullptr && !name && std::string_view(function.name()) == "recals::replay_node") {
    recording->replay_begins(static_cast<int>(function.inputs().at(0).toInt()));
    context->replays = true; // only if it has begun
  } else if (recording != nullptr && name && is_kernel(*name)) {
    context->counts = true;
    if (kernel_depth++ == 0) {
      if (recording->engine_works() && is_made_in_place(function)) {
        context->sum.emplace();
      }
      recording->kernel_begins();
      context->op = *name;
      context->inputs.assign(function.inputs().begin(), function.inputs().end());
    }
  }
}

void kernel_ends(const at::RecordFunction& function, KernelContext* context) {
  if (context->replays && recording != nullptr) {
    recording->replay_ends();
  }
  if (!context->counts || recording == nullptr) {
    return;
  }
  if (--kernel_depth == 0) {
    context->sum.reset();
    recording->kernel_ends();
    recording->kernel_ran(
        {context->op.name, context->op.overload_name, context->inputs, function.outputs(), recording->backward_op()});
  }
}

std::unique_ptr<at::ObserverContext> on_kernel_begin(const at::RecordFunction& function) {
  auto context = std::make_unique<KernelContext>();
  guarded([&] { kernel_begins(function, context.get()); });
  return context;
}

void on_kernel_end(const at::RecordFunction& function, at::ObserverContext* context) {
  guarded([&] { kernel_ends(function, static_cast<KernelContext*>(context)); });
}

/// Numbers that an op wraps into tensors of their own live on the CPU also in a dry run. Where the step uses the CPU, they
/// count: 8 bytes each, and autograd saves some of them.
class HostAllocations : public CpuMemoryListener {
 public:
  explicit HostAllocations(int host) : host_(host) {}

  void allocated(void* pointer, int64_t bytes) override {
    if (recording == nullptr) {
      return;
    }
    const MetaBlock block{next_--, bytes, host_};
    blocks_[pointer] = block;
    recording->allocated(block);
  }

  void freed(void* pointer, int64_t /*bytes*/) override {
    auto known = blocks_.find(pointer);
    if (recording == nullptr || known == blocks_.end()) {
      return;
    }
    recording->freed(known->second);
    blocks_.erase(known);
  }

 private:
  const int host_; ///< the number of the CPU
  int64_t next_ = -1; // ids of meta blocks are not negative
  std::unordered_map<void*, MetaBlock> blocks_;
  const CpuMemorySubscription subscription_{*this};
};

std::unique_ptr<at::ObserverContext> backward_begins(const at::RecordFunction& function) {
  if (recording != nullptr) {
    guarded([&] { recording->backward_op_begins(function.name(), function.seqNr()); });
  }
  return nullptr;
}

void backward_ends(const at::RecordFunction&, at::ObserverContext*) {
  if (recording != nullptr) {
    guarded([&] { recording->backward_op_ends(); });
  }
}

} // namespace

Recorder::Recorder(const Program& program, const std::vector<Target>& targets, bool measured)
    : program_(program),
      targets_(targets),
      kernel_memories_(measured),
      register_block_(program.registers.size(), -1),
      register_external_(program.registers.size(), nullptr),
      node_positions_(program.nodes.size(), 0),
      live_(targets.size(), 0),
      node_start_(targets.size(), 0),
      node_peak_(targets.size(), 0),
      order_(program.devices) {
  TORCH_CHECK(recording == nullptr, "recals: a dry run inside a dry run");
  TORCH_INTERNAL_ASSERT(targets.size() == program.devices.all().size());
  auto& step = result_.step;
  for (const auto& target : targets) {
    step.devices.push_back(target.name());
    RngState::bytes(target.device); // so that the host's allocations of asking it are over
  }
  step.cost_model = targets.front().cost_model.source();
  result_.peak.assign(targets.size(), 0);
  result_.held.assign(targets.size(), 0);
  result_.facts.resize(program.nodes.size());
  for (const auto& node : program.nodes) {
    plan::Node entry;
    entry.op = node.name;
    if (node.source != nullptr) {
      entry.where = where(node.source);
      entry.module = node.source->scopeName();
    }
    entry.transient.assign(targets.size(), 0);
    step.nodes.push_back(std::move(entry));
  }
  if (const int host = program.devices.number_of(c10::kCPU); host >= 0) {
    host_ = std::make_unique<HostAllocations>(host); // may throw
  }
  recording = this;
  kernel_depth = 0;
  recording_token = std::make_shared<Recorder*>(this);
  kernels_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&on_kernel_begin, &on_kernel_end)
                                            .needsInputs(true)
                                            .needsOutputs(true)
                                            .scopes({at::RecordScope::FUNCTION}));
  backward_ops_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&backward_begins, &backward_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

Recorder::~Recorder() {
  at::removeCallback(kernels_);
  at::removeCallback(backward_ops_);
  recording_token.reset();
  recording = nullptr;
}

void Recorder::at_peak(int device, int64_t bytes) {
  node_peak_[device] = std::max(node_peak_[device], bytes);
  result_.peak[device] = std::max(result_.peak[device], bytes);
}

void Recorder::change(int device, int64_t bytes) {
  BackwardEvent event;
  event.kind = BackwardEvent::Kind::Change;
  event.device = device;
  event.bytes = bytes;
  event.label = labels_.empty() ? -1 : labels_.back();
  result_.step.backward.push_back(event);
}

void Recorder::allocated(const MetaBlock& block) {
  if (in_kernel_) {
    kernel_blocks_.push_back(block);
  } else {
    counted(block);
  }
}

void Recorder::counted(const MetaBlock& block) {
  const int device = block.device;
  const int64_t bytes = block_bytes(targets_[device], block.bytes);
  blocks_[block.id] = {device, bytes, -1, !after_forward_};
  ledger_.allocated(block.id, device, bytes);
  live_[device] += bytes;
  at_peak(device, live_[device]);
  order_.touches(device);
  if (after_forward_) {
    change(device, bytes);
  } else if (node_ >= 0) {
    node_blocks_.push_back(block.id);
  }
}

// Note [Inside a kernel]
// A meta kernel may be written as a decomposition, whose temporaries the device's kernel does not have. Of what is
// allocated inside a kernel only what outlives it counts; what the device's kernel itself needs is in kernel_rules.h.

void Recorder::kernel_begins() {
  in_kernel_ = true;
}

void Recorder::kernel_ends() {
  in_kernel_ = false;
  kernel_kept_ = 0;
  for (const auto& block : kernel_blocks_) {
    counted(block);
    kernel_kept_ += block_bytes(targets_[block.device], block.bytes);
  }
  kernel_blocks_.clear();
}

/// A storage on meta that is resized grows without asking the allocator: ops that make an empty output and let another
/// op resize it.
int64_t Recorder::grown(const c10::Storage& storage, int64_t requested) {
  const auto* block = block_of(storage);
  auto known = block == nullptr ? blocks_.end() : blocks_.find(block->id);
  if (known == blocks_.end()) {
    return 0;
  }
  const int device = known->second.device;
  const int64_t bytes = block_bytes(targets_[device], requested);
  if (known->second.bytes >= bytes) {
    return 0;
  }
  const int64_t extra = bytes - known->second.bytes;
  ledger_.grown(block->id, extra);
  known->second.bytes = bytes;
  if (known->second.storage >= 0) {
    result_.step.storages[known->second.storage].bytes = bytes;
  }
  live_[device] += extra;
  order_.touches(device);
  at_peak(device, live_[device]);
  if (after_forward_) {
    change(device, extra);
  }
  return extra;
}

void Recorder::freed(const MetaBlock& block) {
  auto known = blocks_.find(block.id);
  if (known == blocks_.end()) {
    std::erase_if(kernel_blocks_, [&](const MetaBlock& other) { return other.id == block.id; });
    return;
  }
  live_[known->second.device] -= known->second.bytes;
  order_.touches(known->second.device);
  ledger_.freed(block.id);
  if (after_forward_ && !known->second.of_forward) {
    change(known->second.device, -known->second.bytes);
  }
  if (known->second.storage < 0) {
    blocks_.erase(known);
  } else {
    known->second.bytes = 0;
  }
}

int Recorder::storage_of(int64_t block) {
  auto& info = blocks_.at(block);
  if (info.storage < 0) {
    info.storage = static_cast<int>(result_.step.storages.size());
    plan::Storage storage;
    storage.bytes = info.bytes;
    storage.device = info.device;
    storage.producer = node_;
    storage.internal = true;
    result_.step.storages.push_back(std::move(storage));
    result_.origins.push_back({node_, -1, -1});
    ledger_.is_storage(block, info.storage);
  }
  return info.storage;
}

void Recorder::run_begins(const std::vector<at::Tensor>& registers) {
  for (size_t reg = 0; reg < registers.size(); ++reg) {
    if (registers[reg].defined() && registers[reg].has_storage()) {
      register_external_[reg] = registers[reg].storage().unsafeGetStorageImpl();
    }
  }
}

void Recorder::node_begins(int node) {
  node_ = node;
  ledger_.begin(Phase::Forward, node, -1);
  sequences_.resize(node + 1, at::sequence_number::peek()); // assignments of attributes are not told
  node_blocks_.clear();
  node_start_ = live_;
  node_peak_ = live_;
  auto& reads = result_.step.nodes[node].reads;
  for (int reg : program_.nodes[node].inputs) {
    if (register_block_[reg] >= 0) {
      const int storage = storage_of(register_block_[reg]);
      if (std::find(reads.begin(), reads.end(), storage) == reads.end()) {
        reads.push_back(storage);
      }
    }
  }
}

void Recorder::node_ends(int node, const std::vector<at::Tensor>& outputs) {
  const auto& info = program_.nodes[node];
  result_.differentiable.resize(program_.nodes.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined() && outputs[i].requires_grad()) {
      result_.differentiable[node] = true;
    }
    if (!outputs[i].defined() || !outputs[i].has_storage()) {
      continue;
    }
    const auto* block = block_of(outputs[i].storage());
    // Blocks of other runs are from outside, too.
    if (block == nullptr || blocks_.count(block->id) == 0) {
      register_external_[info.outputs[i]] = outputs[i].storage().unsafeGetStorageImpl();
      continue;
    }
    register_block_[info.outputs[i]] = block->id;
    const int storage = storage_of(block->id);
    auto& origin = result_.origins[storage];
    if (origin.node == node && origin.reg < 0) {
      origin.reg = info.outputs[i];
      result_.step.storages[storage].internal = false;
      result_.step.storages[storage].name = "%" + program_.registers[info.outputs[i]].name;
    }
  }
  auto& entry = result_.step.nodes[node];
  for (int64_t id : node_blocks_) {
    auto alive = blocks_.find(id);
    if (alive == blocks_.end() || (alive->second.storage < 0 && alive->second.bytes == 0)) {
      continue;
    }
    const int storage = storage_of(id);
    entry.writes.push_back(storage);
    auto& named = result_.step.storages[storage];
    if (named.name.empty()) {
      const auto& first = info.outputs.empty() ? info.name : "%" + program_.registers[info.outputs[0]].name;
      named.name = first + " saved[" + std::to_string(result_.origins[storage].internal) + "]";
    }
  }
  for (size_t d = 0; d < targets_.size(); ++d) {
    entry.transient[d] = node_peak_[d] - node_start_[d];
  }
  if (info.random && !outputs.empty() && outputs[0].defined()) {
    entry.rng_device = program_.devices.number_of(c10::kCPU);
    entry.rng_bytes = entry.rng_device < 0 ? 0 : RngState::bytes(program_.devices.real(outputs[0].device()));
  }
  node_ = -1;
}

void Recorder::slot_met(const SavedSlot& slot) {
  if (is_from_outside(program_, slot)) {
    return;
  }
  const auto* block = block_of(slot.tensor.storage());
  const auto known = block == nullptr ? blocks_.end() : blocks_.find(block->id);
  const int64_t bytes =
      known == blocks_.end() ? static_cast<int64_t>(slot.tensor.storage().nbytes()) : known->second.bytes;
  auto& slots = result_.facts[slot.node];
  const SlotFact fact{slot.saved_by, bytes};
  slots.insert(std::upper_bound(slots.begin(), slots.end(), fact), fact);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Recorder::slot_saved(const SavedSlot& slot) {
  const auto* block = block_of(slot.tensor.storage());
  if (block == nullptr || blocks_.count(block->id) == 0) {
    return nullptr;
  }
  const int storage = storage_of(block->id);
  if (slot.internal >= 0) {
    result_.origins[storage].internal = slot.internal;
  }
  const int index = static_cast<int>(result_.step.slots.size());
  result_.step.slots.push_back({storage, slot.node});
  SlotFacts facts;
  facts.op = program_.nodes[slot.node].name;
  facts.saved_by = slot.saved_by;
  facts.internal = slot.reg < 0;
  facts.dtype = slot.tensor.scalar_type();
  facts.elements = static_cast<int64_t>(slot.tensor.storage().nbytes() / slot.tensor.element_size());
  facts.dense = slot.tensor.is_non_overlapping_and_dense() && slot.tensor.numel() == facts.elements;
  slot_facts_.push_back(std::move(facts));
  return std::make_unique<RecordingHook>(recording_token, index);
}

void Recorder::slot_event(BackwardEvent::Kind kind, int slot) {
  BackwardEvent event;
  event.kind = kind;
  event.index = slot;
  event.label = labels_.empty() ? -1 : labels_.back();
  result_.step.backward.push_back(event);
}

namespace {

bool was_given(const KernelCall& call, const at::Tensor& output) {
  const auto given = tensors_in(call.inputs);
  return std::any_of(given.begin(), given.end(), [&](const at::Tensor& input) {
    return input.defined() && input.has_storage() && input.is_alias_of(output);
  });
}

} // namespace

void Recorder::kernel_ran(const KernelCall& call) {
  for (const auto& output : call.outputs) {
    if (output.isTensor() && output.toTensor().defined() && output.toTensor().has_storage()) {
      const auto& tensor = output.toTensor();
      const int64_t more = grown(tensor.storage(), static_cast<int64_t>(tensor.storage().nbytes()));
      if (more > 0 && !was_given(call, tensor)) {
        kernel_kept_ += more; // where it was given, the measured call had it in its final size
      }
      if (const auto* block = block_of(tensor.storage())) {
        ledger_.is_dtype(block->id, tensor.scalar_type());
      }
    }
  }
  const int device = device_of(call);
  const auto& target = targets_[device];
  const auto work = work_of(call);
  const auto memory = kernel_memories_.of(call, work, target);
  const auto results = tensors_in(call.outputs);
  for (size_t i = 0; i < std::min(results.size(), memory.results.size()); ++i) {
    if (results[i].defined() && results[i].has_storage()) {
      kernel_kept_ += grown(results[i].storage(), memory.results[i]);
    }
  }
  const int64_t scratch = std::max(memory.scratch, memory.peak - kernel_kept_);
  if (scratch > 0) {
    at_peak(device, live_[device] + scratch);
    ledger_.scratch(device, scratch);
    order_.touches(device);
    if (after_forward_) {
      BackwardEvent event;
      event.kind = BackwardEvent::Kind::Peak;
      event.device = device;
      event.bytes = scratch;
      event.label = labels_.empty() ? -1 : labels_.back();
      result_.step.backward.push_back(event);
    }
  }
  const double seconds = seconds_of(work, target.cost_model);
  ledger_.add_seconds(seconds);
  if (after_forward_) {
    result_.step.backward_seconds += seconds;
  } else if (node_ >= 0) {
    result_.step.nodes[node_].seconds += seconds;
    node_positions_[node_] = std::max(node_positions_[node_], positions_below(call));
  }
}

/// That of what it makes; what it reads is somewhere else only in a copy between devices.
int Recorder::device_of(const KernelCall& call) const {
  for (const auto* values : {&call.outputs, &call.inputs}) {
    for (const auto& value : *values) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_meta()) {
        const auto device = value.toTensor().device();
        return device.has_index() ? device.index() : 0;
      }
    }
  }
  return 0;
}

int Recorder::node_of(int64_t sequence) const {
  // Autograd nodes of the loss come after those of the module; what accumulates gradients has the number -1.
  if (sequence < 0 || static_cast<uint64_t>(sequence) >= sequences_.back()) {
    return -1;
  }
  const auto next = std::upper_bound(sequences_.begin(), sequences_.end() - 1, static_cast<uint64_t>(sequence));
  return static_cast<int>(next - sequences_.begin()) - 1;
}

void Recorder::backward_op_begins(const std::string& name, int64_t sequence) {
  labels_.push_back(static_cast<int>(result_.step.backward_ops.size()));
  result_.step.backward_ops.push_back(name);
  if (labels_.size() == 1) {
    order_.begins(*torch::autograd::get_current_node(), labels_.back());
  }
  ledger_.begin(Phase::Backward, node_of(sequence), labels_.back());
}

std::string Recorder::backward_op() const {
  return labels_.empty() ? "" : result_.step.backward_ops[labels_.back()];
}

void Recorder::replay_begins(int node) {
  backward_nodes_.push_back(ledger_.now().node);
  ledger_.begin(Phase::Replay, node, labels_.empty() ? -1 : labels_.back());
}

void Recorder::replay_ends() {
  ledger_.begin(Phase::Backward, backward_nodes_.back(), labels_.empty() ? -1 : labels_.back());
  backward_nodes_.pop_back();
}

void Recorder::backward_op_ends() {
  if (!labels_.empty()) {
    if (std::uncaught_exceptions() > 0 && failed_backward_op_.empty()) {
      failed_backward_op_ = backward_op();
      if (const int node = ledger_.now().node; node >= 0) {
        const auto& info = result_.step.nodes[node];
        failed_backward_op_ += ", the derivative of " + info.op + (info.where.empty() ? "" : " at " + info.where);
      }
    }
    labels_.pop_back();
  }
}

void Recorder::forward_ends(const std::vector<at::Tensor>& outputs) {
  after_forward_ = true;
  sequences_.resize(program_.nodes.size() + 1, at::sequence_number::peek()); // the last: where the loss begins
  ledger_.forward_ends();
  result_.held = live_;
  auto& step = result_.step;
  for (const auto& output : outputs) {
    const auto* block = output.defined() && output.has_storage() ? block_of(output.storage()) : nullptr;
    if (block != nullptr && blocks_.count(block->id) != 0) {
      step.storages[storage_of(block->id)].output = true;
    }
  }
  for (const auto& cast : AutocastOnMeta::cached()) {
    const auto* block = block_of(cast.storage());
    const auto known = block == nullptr ? blocks_.end() : blocks_.find(block->id);
    if (known != blocks_.end() && known->second.storage >= 0) {
      step.storages[known->second.storage].held_in_forward = true;
    }
  }
  std::vector<bool> has_slot(step.storages.size(), false);
  for (const auto& slot : step.slots) {
    has_slot[slot.storage] = true;
  }
  for (const auto& [id, block] : blocks_) {
    (void)id;
    if (block.storage >= 0 && block.bytes > 0 && !has_slot[block.storage] && !step.storages[block.storage].output) {
      step.storages[block.storage].pinned = true;
      step.storages[block.storage].recomputable = false;
    }
  }
}

namespace {

bool is_blanked(const ProgramNode& node, size_t argument) {
  const auto& blanked = node.blanked_in_replay;
  return std::find(blanked.begin(), blanked.end(), argument) != blanked.end();
}

} // namespace

void Recorder::find_writes() {
  auto& step = result_.step;
  const int count = static_cast<int>(program_.nodes.size());
  // What is written in place, and by which node last: storages of the step, and storages from outside it.
  auto& written = written_;
  std::unordered_map<const void*, int> written_outside;
  // Written without a trace in the version counter (running statistics): no reader may trust it later.
  std::unordered_set<const void*> written_unseen;
  std::vector<bool> runs_twice(count, true);
  auto write = [&](int reg, int node, bool unseen) {
    if (reg < 0) {
      return;
    }
    if (register_block_[reg] >= 0) {
      written[storage_of(register_block_[reg])] = node;
    } else if (register_external_[reg] != nullptr) {
      written_outside[register_external_[reg]] = node;
      if (unseen) {
        written_unseen.insert(register_external_[reg]);
      }
    }
  };
  for (int n = 0; n < count; ++n) {
    const auto& node = program_.nodes[n];
    const auto& blanked = node.blanked_in_replay;
    const bool has_statistics =
        std::any_of(blanked.begin(), blanked.end(), [&](size_t i) { return node.arguments[i].reg >= 0; });
    if (node.source == nullptr || !may_run_twice(*node.source) || (has_statistics && !saves_no_statistics(node.name))) {
      runs_twice[n] = false;
    }
    const auto* schema = node.source == nullptr ? nullptr : node.source->maybeSchema();
    for (size_t i = 0; schema != nullptr && i < schema->arguments().size() && i < node.arguments.size(); ++i) {
      const auto* alias = schema->arguments()[i].alias_info();
      const bool unseen = is_blanked(node, i);
      if (unseen || (alias != nullptr && alias->isWrite())) {
        write(node.arguments[i].reg, n, unseen);
        for (int reg : node.arguments[i].list) {
          write(reg, n, unseen);
        }
      }
    }
  }
  auto reads_written = [&](int reg, int node) {
    if (register_block_[reg] >= 0) {
      auto found = written.find(storage_of(register_block_[reg]));
      return found != written.end() && found->second >= node;
    }
    const void* storage = register_external_[reg];
    auto found = written_outside.find(storage);
    return written_unseen.count(storage) != 0 || (found != written_outside.end() && found->second >= node);
  };
  // Who reads an older version cannot run again; who was written after it was made cannot be made again.
  for (int n = 0; n < count; ++n) {
    const auto& node = program_.nodes[n];
    for (size_t i = 0; i < node.arguments.size(); ++i) {
      if (is_blanked(node, i)) {
        continue;
      }
      std::vector<int> registers = node.arguments[i].list;
      registers.push_back(node.arguments[i].reg);
      for (int reg : registers) {
        runs_twice[n] = runs_twice[n] && (reg < 0 || !reads_written(reg, n));
      }
    }
    for (int storage : step.nodes[n].writes) {
      if (!runs_twice[n] || written.count(storage) != 0) {
        step.storages[storage].recomputable = false;
      }
    }
  }
  // An internal without a number is held by something other than a slot.
  for (size_t s = 0; s < step.storages.size(); ++s) {
    if (result_.origins[s].reg < 0 && result_.origins[s].internal < 0) {
      step.storages[s].recomputable = false;
    }
  }
}

/// A storage can be packed if it is not written after it was saved, and nothing but slots holds it.
void Recorder::find_packs() {
  auto& step = result_.step;
  std::vector<std::vector<SlotFacts>> facts(step.storages.size());
  std::vector<int> first_save(step.storages.size(), static_cast<int>(program_.nodes.size()));
  for (size_t i = 0; i < step.slots.size(); ++i) {
    const int storage = step.slots[i].storage;
    slot_facts_[i].positions_below = node_positions_[step.storages[storage].producer];
    facts[storage].push_back(slot_facts_[i]);
    first_save[storage] = std::min(first_save[storage], step.slots[i].node);
  }
  for (size_t s = 0; s < step.storages.size(); ++s) {
    const auto written = written_.find(static_cast<int>(s));
    const bool changes = written != written_.end() && written->second > first_save[s];
    const bool unseen = result_.origins[s].reg < 0 && result_.origins[s].internal < 0;
    const auto& target = targets_[step.storages[s].device];
    // What the rules say is said of the CPU's kernels.
    if (target.device.is_cpu() && !facts[s].empty() && !changes && !unseen) {
      step.storages[s].packs = packs_for(facts[s], step.storages[s].bytes, target.cost_model);
    }
  }
}

void Recorder::find_recipes() {
  auto& step = result_.step;
  for (size_t s = 0; s < step.storages.size(); ++s) {
    const auto& origin = result_.origins[s];
    const auto* recipe = recipe_of(program_.nodes[origin.node].name);
    const bool saved = recipe != nullptr && origin.reg < 0 && origin.internal == recipe->internal;
    const int64_t block = saved ? register_block_[program_.nodes[origin.node].outputs.at(0)] : -1;
    const int output = block < 0 ? -1 : storage_of(block);
    if (output < 0 || step.storages[output].producer != origin.node) {
      continue;
    }
    const auto& target = targets_[step.storages[s].device];
    if (!target.device.is_cpu()) {
      continue;
    }
    // An elementwise op on two tensors.
    const int64_t written = step.storages[output].bytes;
    Work work;
    work.bytes = 2 * written + step.storages[s].bytes;
    auto& entry = step.nodes[origin.node].recipe;
    entry.reads = {static_cast<int>(s)};
    entry.seconds = seconds_of(work, target.cost_model);
    entry.transient.assign(targets_.size(), 0);
    entry.transient[step.storages[s].device] = written;
  }
}

void Recorder::failed(std::exception_ptr error) {
  if (!error_) {
    error_ = std::move(error);
  }
}

DryRun Recorder::finish() {
  if (error_) {
    std::rethrow_exception(error_);
  }
  find_writes();
  find_packs();
  find_recipes();
  for (int64_t block : register_block_) {
    result_.register_storage.push_back(block < 0 ? -1 : storage_of(block));
  }
  result_.kernels = kernel_memories_.finish();
  result_.step.scratch = result_.kernels.scratch;
  result_.ledger = ledger_.finish();
  result_.overlaps = order_.finish();
  return std::move(result_);
}

} // namespace recals
