#include "runtime/frame.h"

#include <algorithm>
#include <chrono>
#include <set>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include "runtime/budget_warning.h"
#include "runtime/call_node.h"
#include "runtime/counters.h"
#include "runtime/debug.h"
#include "runtime/owned_slots.h"
#include "runtime/waiting.h"

namespace recals {

namespace {

/// Planning runs the step, too, which is nothing that was done for a training step: it counts where nobody reads.
Counters& counters_of(const Program& program) {
  static Counters of_planning;
  return program.meta ? of_planning : counters();
}

} // namespace

Frame::Geometry::Geometry(const at::Tensor& tensor)
    : sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      offset(tensor.storage_offset()),
      options(tensor.options().requires_grad(false)) {}

at::Tensor Frame::Geometry::on(const c10::Storage& storage) const {
  auto view = at::empty({0}, options);
  return view.set_(storage, offset, sizes, strides);
}

bool Frame::Geometry::is_of(const at::Tensor& tensor) const {
  return tensor.sizes() == sizes && tensor.strides() == strides && tensor.storage_offset() == offset &&
      tensor.dtype() == options.dtype() && tensor.device() == options.device();
}

c10::Storage Frame::InUse::lock() const {
  auto alive = slots > 0 && storage ? storage->lock() : c10::intrusive_ptr<c10::StorageImpl>();
  return alive ? c10::Storage(std::move(alive)) : c10::Storage();
}

class Frame::Turn {
 public:
  explicit Turn(Frame& frame) : frame_(frame), lock_(lock_politely(frame.mutex_)) {}
  ~Turn() {
    frame_.settle();
    lock_.unlock();
    frame_.settle_if_free(); // what came between the two
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Frame& frame_;
  std::unique_lock<std::recursive_mutex> lock_;
};

namespace {

/// Each program is told of once.
bool is_first_second_order(const std::shared_ptr<const Program>& program) {
  static std::mutex mutex;
  static std::set<std::weak_ptr<const Program>, std::owner_less<>> told;
  const std::lock_guard lock(mutex);
  std::erase_if(told, [](const auto& other) { return other.expired(); });
  return told.insert(program).second;
}

} // namespace

/// Stands in for a dropped slot: knows how the slot showed its storage, and asks the frame for it.
class Frame::Hook : public torch::autograd::SavedVariableHooks {
 public:
  Hook(std::shared_ptr<Frame> frame, int reg, const at::Tensor& slot, int node)
      : frame(std::move(frame)),
        reg(reg),
        node(node),
        geometry(slot),
        conjugated(slot.is_conj()),
        negated(slot.is_neg()) {}

  ~Hook() override {
    frame->release({reg, round_used, given});
  }
  void call_pack_hook(const at::Tensor&) override {}
  at::Tensor call_unpack_hook() override {
    // The engine leaves grad mode on for a backward that is differentiated again.
    if (at::GradMode::is_enabled() && torch::autograd::get_current_node() != nullptr) {
      tell_of_second_order();
    }
    return frame->demand(*this);
  }

  at::Tensor view_of(const at::Tensor& base) const {
    auto view = geometry.on(base.storage());
    view._set_conj(conjugated);
    view._set_neg(negated);
    return view;
  }

  void tell_of_second_order() const {
    if (is_first_second_order(frame->program_)) {
      budget_warning(
          "recals: the backward was run with create_graph=True, but the plan of this module was made for a plain "
          "backward. Its gradients are right; its budget does not hold in such a step, which keeps what the backward "
          "reads and makes until it is differentiated itself.");
    }
  }

  std::shared_ptr<Frame> frame;
  int reg;
  int node; ///< that saved it
  int round_used = -1;
  bool given = false;
  Geometry geometry;
  bool conjugated;
  bool negated;
};

namespace {

std::string text_of(at::IntArrayRef sizes, at::IntArrayRef strides, const at::TensorOptions& options) {
  return c10::str(options.dtype(), " of ", sizes, ", strides ", strides, ", on ", options.device());
}

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

size_t storage_bytes(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().nbytes() : 0;
}

/// Lets go of the autograd graph that made it.
void drop_history(at::Tensor& tensor) {
  if (tensor.defined() && tensor.requires_grad()) {
    tensor = tensor.tensor_data();
  }
}

uint64_t fingerprint_of(const at::Tensor& tensor) {
  return debugging() && !tensor.is_meta() ? fingerprint(tensor) : 0;
}

} // namespace

Frame::Frame(std::shared_ptr<const Program> program)
    : program_(std::move(program)),
      held_(program_->registers.size()),
      packed_(program_->registers.size()),
      geometry_(program_->registers.size()),
      retained_(program_->registers.size()),
      in_use_(program_->registers.size()),
      slots_(program_->registers.size()),
      rng_(program_->nodes.size()),
      required_grad_(program_->nodes.size()) {}

void Frame::note_geometry(int reg, const at::Tensor& tensor) {
  if (!geometry_[reg] && !program_->is_held(reg) && tensor.has_storage()) {
    geometry_[reg].emplace(tensor);
  }
}

void Frame::before_node(int node, const std::vector<at::Tensor>& inputs) {
  const auto& info = program_->nodes[node];
  const bool internals = std::any_of(info.internals.begin(), info.internals.end(), [&](const Internal& internal) {
    return program_->runs_again(internal.reg);
  });
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int reg = info.inputs[i];
    const auto& tensor = inputs[i];
    if (!tensor.defined()) {
      continue;
    }
    streams_.note(tensor.device());
    if ((internals || info.asks_for_grad) && tensor.requires_grad()) {
      required_grad_[node].push_back(reg);
    }
    if (!program_->is_held(reg)) {
      note_geometry(reg, tensor);
    } else if (!held_[reg]) {
      at::NoGradGuard no_grad;
      // detach() shares the version counter and drops the graph, which would otherwise own this frame.
      const bool buffer = program_->registers[reg].attribute && !tensor.requires_grad() && !program_->meta;
      held_[reg] = Held{
          tensor.detach(),
          version_of(tensor),
          storage_bytes(tensor),
          buffer ? checksum_if_small(tensor) : std::nullopt,
          fingerprint_of(tensor)};
    }
  }
}

void Frame::before_draw(int node, const at::Generator& generator) {
  if (program_->nodes[node].recipe != nullptr) {
    drawn_.emplace(Drawn{generator.device(), generator, RngState::copy_of(generator), {}});
  } else {
    rng_[node] = RngState::of(generator);
    ++counters_of(*program_).rng_saves;
  }
}

void Frame::before_draw_on_meta(int node, c10::Device device) {
  if (program_->nodes[node].recipe != nullptr) {
    drawn_.emplace(Drawn{device, {}, {}, {}});
  } else {
    rng_[node] = RngState::stand_in(device, program_->devices);
  }
}

void Frame::after_draw(int node) {
  const auto place = RngState::place_of(drawn_ ? drawn_->generator : rng_[node]->generator());
  if (drawn_) {
    drawn_->end = place;
  } else {
    rng_[node]->ends_at(place);
  }
}

void Frame::keep_internal(int reg, const at::Tensor& tensor) {
  held_[reg] = Held{tensor.tensor_data(), -1, storage_bytes(tensor), std::nullopt, 0};
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Frame::drop(int reg, const at::Tensor& slot, int node) {
  const Turn turn(*this);
  const auto& info = program_->registers[reg];
  auto& slots = slots_[reg];
  if (info.packer != nullptr && slots.live == 0) {
    const auto elements = elements_of(slot);
    packed_[reg] = {info.packer->pack(elements), elements.numel(), elements.scalar_type()};
    const auto* source = program_->nodes[node].source;
    TORCH_CHECK(
        packed_[reg].bytes.defined(),
        "recals: ",
        info.name,
        ", saved by ",
        program_->nodes[node].name,
        " at ",
        where(source),
        ", cannot be kept as '",
        info.packer->name,
        "': ",
        info.packer->broken,
        ". Call recals.optimize with a budget that needs no packing, and report this op.");
    ++counters_of(*program_).packs;
    if (info.value == nullptr) {
      geometry_[reg].emplace(slot); // an internal is no node's input; a recipe reads it as it was saved
    }
  }
  ++slots.live;
  ++slots.waiting;
  slots.device = slot.device();
  slots.nbytes = slot.storage().nbytes();
  ++counters_of(*program_).dropped_slots;
  return std::make_unique<Hook>(shared_from_this(), reg, slot, node);
}

void Frame::after_node(int node, const std::vector<at::Tensor>& outputs) {
  const auto& info = program_->nodes[node];
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) {
      continue;
    }
    streams_.note(outputs[i].device());
    note_geometry(info.outputs[i], outputs[i]);
  }
  if (!drawn_) {
    return;
  }
  // Without a slot there is nothing to go by (the op's input needed no gradient, or the user's hooks have the slot).
  const bool there = held_[info.recipe_reg] || packed_[info.recipe_reg].bytes.defined();
  if (!there) {
    rng_[node] = program_->meta ? RngState::stand_in(drawn_->device, program_->devices)
                                : RngState::of(drawn_->generator, drawn_->before);
    rng_[node]->ends_at(drawn_->end);
    ++counters_of(*program_).rng_saves;
  }
  drawn_.reset();
}

void Frame::seal(std::vector<int> base) {
  const Turn turn(*this);
  graph_.emplace(*program_, std::move(base));
  ReplayNeeds::Listener& listener = *this;
  needs_.emplace(*program_, *graph_, live_slots(), listener);
}

std::vector<int> Frame::live_slots() const {
  std::vector<int> live;
  live.reserve(slots_.size());
  for (const auto& slots : slots_) {
    live.push_back(slots.live);
  }
  return live;
}

at::Tensor Frame::demand(Hook& hook) {
  const Turn turn(*this);
  TORCH_INTERNAL_ASSERT(needs_, "recals: a backward inside the forward of its own graph");
  if (hook.round_used == round_) {
    begin_round();
  }
  const ModeGuard modes(state_);
  const StreamStateGuard streams(streams_, hook.geometry.options.device());
  auto base = storage_for(hook);
  auto slot = hook.view_of(base);
  streams.hand_over(slot);
  auto& use = in_use_[hook.reg];
  use.storage = base.storage().getWeakStorageImpl();
  use.slots += hook.given ? 0 : 1;
  hook.given = true;
  hook.round_used = round_;
  --slots_[hook.reg].waiting;
  needs_->slot_used(hook.reg);
  return slot;
}

void Frame::release(const Released& slot) {
  {
    const std::lock_guard<std::mutex> lock(released_mutex_);
    released_.push_back(slot);
    unsettled_ = true;
  }
  settle_if_free();
}

/// Whoever finds the frame taken leaves the queue to who has it.
void Frame::settle_if_free() {
  while (unsettled_) {
    const std::unique_lock<std::recursive_mutex> lock(mutex_, std::try_to_lock);
    if (!lock) {
      return;
    }
    settle();
  }
}

/// In the frame: counts the released slots out. Nothing in it asks for memory, or throws.
void Frame::settle() noexcept {
  std::vector<Released> released;
  {
    const std::lock_guard<std::mutex> lock(released_mutex_);
    released.swap(released_);
    unsettled_ = false;
  }
  for (const auto& slot : released) {
    auto& slots = slots_[slot.reg];
    --slots.live;
    const bool waited = slot.round_used != round_;
    slots.waiting -= waited ? 1 : 0;
    if (slot.given && --in_use_[slot.reg].slots == 0) {
      in_use_[slot.reg].storage.reset();
    }
    const auto* packer = program_->registers[slot.reg].packer;
    if (packer != nullptr && !packer->lossless && slots.live == 0) {
      packed_[slot.reg] = Packed{};
    }
    if (needs_) {
      needs_->slot_released(slot.reg, waited);
    }
  }
}

void Frame::begin_round() {
  ++round_;
  for (size_t reg = 0; reg < slots_.size(); ++reg) {
    slots_[reg].waiting = slots_[reg].live;
    // What an unfinished round has left (a partial backward) is made anew, so that the counts start together.
    retained_[reg].reset();
  }
  needs_->begin_again(live_slots());
}

void Frame::unwanted(int reg) {
  retained_[reg].reset();
}

void Frame::dead(int reg) {
  held_[reg].reset();
  if (program_->registers[reg].packer != nullptr && program_->registers[reg].packer->lossless) {
    packed_[reg] = Packed{};
  }
}

void Frame::node_dead(int node) {
  rng_[node].reset();
}

/// The storage of a slot that asks, as a tensor that shows it somehow.
at::Tensor Frame::storage_for(const Hook& hook) {
  Demand demand;
  demand.reg = hook.reg;
  demand.asked_by = hook.node;
  const auto& info = program_->registers[hook.reg];
  if (info.packer != nullptr && !info.packer->lossless) {
    // What a replay has made is another storage: the original.
    const auto storage = in_use_[hook.reg].lock();
    return storage ? hook.geometry.on(storage) : unpack(hook.reg);
  }
  auto base = at_hand(demand, hook.reg);
  if (!base.defined() && info.packer != nullptr) {
    base = unpack(hook.reg);
  }
  if (base.defined()) {
    maybe_retain(demand, hook.reg, base);
    return base;
  }
  replay(demand);
  base = at_hand(demand, hook.reg);
  TORCH_CHECK(
      base.defined(), "recals: the recomputation of ", info.name, " did not save the same tensors as the forward");
  return base;
}

at::Tensor Frame::unpack(int reg) {
  RECORD_FUNCTION("recals::replay_node", std::vector<c10::IValue>{program_->registers[reg].producer});
  at::NoGradGuard no_grad;
  const auto& packed = packed_[reg];
  TORCH_INTERNAL_ASSERT(packed.bytes.defined(), "recals: nothing is packed for ", program_->registers[reg].name);
  ++counters_of(*program_).unpacks;
  auto elements = program_->registers[reg].packer->unpack(packed.bytes, packed.elements, packed.dtype);
  return geometry_[reg] ? geometry_[reg]->on(elements.storage()) : elements;
}

at::Tensor Frame::at_hand(const Demand& demand, int reg) const {
  if (auto local = demand.locals.find(reg); local != demand.locals.end() && local->second.tensor.defined()) {
    return local->second.tensor;
  }
  if (retained_[reg].defined()) {
    return retained_[reg];
  }
  const auto* packer = program_->registers[reg].packer;
  const auto storage = packer != nullptr && !packer->lossless ? c10::Storage() : in_use_[reg].lock();
  if (!storage) {
    return {};
  }
  if (geometry_[reg]) {
    return geometry_[reg]->on(storage);
  }
  auto bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()));
  return bytes.set_(storage);
}

void Frame::maybe_retain(const Demand& demand, int reg, const at::Tensor& tensor) {
  const bool from_here = demand.asked_by <= program_->registers[reg].retained_from;
  if (from_here && needs_->wanted(reg) && !needs_->retained(reg)) {
    retained_[reg] = tensor;
    needs_->retain(reg);
  }
}

/// What must run so that the demanded register can be made, in forward order. Counts the readers of what it meets.
std::vector<int> Frame::nodes_for(Demand& demand) {
  std::vector<int> nodes;
  std::vector<int> todo{graph_->maker[demand.reg]};
  std::unordered_set<int> seen(todo.begin(), todo.end());
  std::vector<int> found;
  while (!todo.empty()) {
    const int node = todo.back();
    todo.pop_back();
    nodes.push_back(node);
    for (int reg : graph_->reads[node]) {
      if (program_->is_held(reg)) {
        continue;
      }
      auto& local = demand.locals[reg];
      if (++local.readers > 1) {
        continue;
      }
      // What is only in use must not go before it is read.
      local.tensor = at_hand(demand, reg);
      const int maker = graph_->maker[reg];
      if (local.tensor.defined()) {
        found.push_back(reg);
      } else if (maker >= 0 && seen.insert(maker).second) {
        todo.push_back(maker);
      }
    }
  }
  for (int reg : found) {
    maybe_retain(demand, reg, demand.locals[reg].tensor);
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

void Frame::replay(Demand& demand) {
  RECORD_FUNCTION("recals::replay", std::vector<c10::IValue>());
  const auto start = std::chrono::steady_clock::now();
  const ForwardStateGuard as_in_forward(state_);
  ++counters_of(*program_).replays;
  for (int node : nodes_for(demand)) {
    run_again(demand, node);
  }
  counters_of(*program_).recompute_nanoseconds +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
}

const at::Tensor& Frame::held(int node, int reg) {
  auto& held = held_[reg];
  TORCH_INTERNAL_ASSERT(held, "recals: nothing is held for ", program_->registers[reg].name);
  const auto& info = program_->nodes[node];
  TORCH_CHECK(
      storage_bytes(held->tensor) == held->nbytes,
      "recals: the storage of ",
      program_->registers[reg].name,
      " was resized after the forward (",
      storage_bytes(held->tensor),
      " bytes, expected ",
      held->nbytes,
      "), but ",
      info.name,
      " at ",
      where(info.source),
      " must read it again in the backward. Parameters that are gathered for their use must be gathered for the "
      "backward, "
      "too, before it asks for what was made of them; or pin that to be kept (pins=).");
  const int64_t version = version_of(held->tensor);
  if (held->version >= 0 && held->version != version) {
    const bool same = held->checksum && held->checksum == checksum_if_small(held->tensor);
    TORCH_CHECK(
        same,
        "recals: ",
        program_->registers[reg].name,
        " was modified in place after the forward (version ",
        version,
        ", expected ",
        held->version,
        "), but ",
        info.name,
        " at ",
        where(info.source),
        " must read it again in the backward. Clone it before the modification, or modify it after the backward.");
    held->version = version; // written with what it held
  }
  // Running statistics move, and are not read again.
  const bool withheld = std::any_of(info.blanked_in_replay.begin(), info.blanked_in_replay.end(), [&](size_t i) {
    return info.arguments[i].reg == reg;
  });
  TORCH_CHECK(
      withheld || held->fingerprint == 0 || held->fingerprint == fingerprint(held->tensor),
      "recals: ",
      program_->registers[reg].name,
      " was overwritten after the forward in a way that autograd does not see (.data, numpy), but ",
      info.name,
      " at ",
      where(info.source),
      " must read it again in the backward. The plain module would have another gradient. Clone it before, or write to "
      "it after the backward.");
  return held->tensor;
}

/// The tensor of `reg` for `node`: held, at hand, unpacked, or a view of one of those.
at::Tensor Frame::input(Demand& demand, int node, int reg) {
  if (program_->is_held(reg)) {
    return held_[reg] ? held(node, reg) : at::Tensor(); // undefined: an optional argument that is not there
  }
  if (graph_->base[reg] == reg) {
    auto tensor = at_hand(demand, reg);
    if (!tensor.defined()) {
      tensor = unpack(reg);
      demand.locals[reg].tensor = tensor;
      maybe_retain(demand, reg, tensor);
    }
    return tensor;
  }
  const int producer = program_->registers[reg].producer;
  const auto& view = program_->nodes[producer];
  std::vector<at::Tensor> inputs;
  for (int below : view.inputs) {
    inputs.push_back(input(demand, producer, below));
  }
  const auto place = std::find(view.outputs.begin(), view.outputs.end(), reg) - view.outputs.begin();
  auto shown = std::move(call_op(producer, inputs, /*saves=*/false).at(place));
  drop_history(shown);
  return shown;
}

/// Runs the op of `node` as the forward ran it, where this can make a difference: in grad mode, on inputs that require grad as
/// they did. `saves`: it must save what it saved then. The outputs have the history that this makes.
std::vector<at::Tensor> Frame::call_op(int node, std::vector<at::Tensor>& inputs, bool saves) {
  const auto& info = program_->nodes[node];
  const bool with_grad = saves || info.asks_for_grad;
  for (size_t i = 0; with_grad && i < inputs.size(); ++i) {
    if (inputs[i].defined()) {
      const auto& flags = required_grad_[node];
      inputs[i] = inputs[i].detach();
      inputs[i].set_requires_grad(std::find(flags.begin(), flags.end(), info.inputs[i]) != flags.end());
    }
  }
  const at::AutoGradMode grad_mode(with_grad);
  return call_node(info, inputs, /*replay=*/true, rng_[node] ? rng_[node]->generator() : at::Generator());
}

/// The outputs of `node`, run again on `inputs`, which are let go of. Internals that are asked for are made, too.
std::vector<at::Tensor> Frame::call_again(Demand& demand, int node, std::vector<at::Tensor>& inputs) {
  // For who watches: profiles, and the dry run, which tells replays from the rest of the backward by it.
  RECORD_FUNCTION("recals::replay_node", std::vector<c10::IValue>{node});
  const auto& info = program_->nodes[node];
  if (goes_by_recipe(node)) {
    std::vector<at::Tensor> outputs{info.recipe->run(inputs.front(), inputs.back())};
    inputs.clear();
    return outputs;
  }
  const bool internals = std::any_of(info.internals.begin(), info.internals.end(), [&](const Internal& internal) {
    return program_->runs_again(internal.reg) && needs_->wanted(internal.reg);
  });
  std::optional<RngGuard> rng;
  if (rng_[node]) {
    rng.emplace(*rng_[node]);
    ++counters_of(*program_).rng_restores;
  }
  const auto since = at::sequence_number::peek();
  auto outputs = call_op(node, inputs, /*saves=*/internals);
  if (rng) {
    TORCH_CHECK(
        rng_[node]->has_ended_alike(),
        "recals: ",
        info.name,
        " at ",
        where(info.source),
        " drew other random numbers in the backward than in the forward: another thread used the generator of ",
        rng_[node]->generator().device(),
        " at the same time. Give that thread a generator of its own (generator=torch.Generator()).");
    rng->put_back();
  }
  rng.reset();
  if (internals) {
    for_each_owned_slot(outputs, since, shown_by(info, inputs, outputs), [&](const OwnedSlot& slot) {
      for (const auto& internal : info.internals) {
        if (slot.internal == internal.number && program_->runs_again(internal.reg)) {
          // Without its history, which would hold all that this run has saved.
          made(demand, internal.reg, slot.tensor.tensor_data());
        }
      }
    });
  }
  inputs.clear();
  for (auto& output : outputs) {
    drop_history(output);
  }
  return outputs;
}

void Frame::run_again(Demand& demand, int node) {
  const auto& info = program_->nodes[node];
  std::vector<at::Tensor> inputs;
  inputs.reserve(info.inputs.size());
  for (int reg : info.inputs) {
    inputs.push_back(input(demand, node, reg));
  }
  if (goes_by_recipe(node)) {
    inputs.push_back(input(demand, node, info.recipe_reg));
  }
  auto outputs = call_again(demand, node, inputs);
  ++counters_of(*program_).recomputed_nodes;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].defined()) {
      counters_of(*program_).recomputed_bytes += static_cast<int64_t>(outputs[i].nbytes());
      made(demand, info.outputs[i], outputs[i]);
    }
  }
  outputs.clear();
  count_reads(demand, node);
}

void Frame::made(Demand& demand, int reg, const at::Tensor& tensor) {
  if (graph_->maker[reg] < 0 || at_hand(demand, reg).defined()) {
    return; // a second copy
  }
  const auto& geometry = geometry_[reg];
  TORCH_CHECK(
      !geometry || geometry->is_of(tensor),
      "recals: ",
      program_->registers[reg].name,
      " was recomputed as ",
      text_of(tensor.sizes(), tensor.strides(), tensor.options()),
      ", but the forward had ",
      text_of(geometry->sizes, geometry->strides, geometry->options),
      ". Its op, ",
      program_->nodes[program_->registers[reg].producer].name,
      ", depends on something else than its inputs; pin what it makes to be kept (pins=).");
  const auto& slots = slots_[reg];
  const bool packed = program_->registers[reg].packer != nullptr;
  TORCH_CHECK(
      slots.live == 0 || packed || (tensor.storage().nbytes() == slots.nbytes && tensor.device() == slots.device),
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
  if (auto local = demand.locals.find(reg); reg == demand.reg || local != demand.locals.end()) {
    demand.locals[reg].tensor = tensor;
  }
  maybe_retain(demand, reg, tensor);
}

/// `node` has read what it reads; what nobody of this demand reads any more is no longer local to it.
void Frame::count_reads(Demand& demand, int node) {
  for (int reg : graph_->reads[node]) {
    auto local = demand.locals.find(reg);
    if (local != demand.locals.end() && --local->second.readers == 0 && reg != demand.reg) {
      local->second.tensor.reset();
    }
  }
}

} // namespace recals
