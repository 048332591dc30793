#include "passes/sizes/backward_order.h"

#include <algorithm>

namespace recals {

using torch::autograd::Node;

namespace {

void merge(std::vector<int>& clock, const std::vector<int>& other) {
  for (size_t t = 0; t < clock.size(); ++t) {
    clock[t] = std::max(clock[t], other[t]);
  }
}

} // namespace

BackwardOrder::BackwardOrder(const DeviceTable& devices)
    : devices_(devices),
      touched_(devices.all().size(), false),
      last_(devices.all().size()),
      visits_(devices.all().size()),
      overlaps_(devices.all().size()) {}

/// The engine's rule (Node::device), for the devices that the step will be on.
int BackwardOrder::thread_of(const Node& node) const {
  int thread = 0;
  for (uint32_t i = 0; i < node.num_inputs(); ++i) {
    const auto device = node.input_metadata(i).device();
    thread = device.is_meta() && device.has_index() ? device.index() : 0;
    if (!devices_.all()[thread].is_cpu()) {
      break;
    }
  }
  return thread;
}

bool BackwardOrder::precedes(const Run& one, const Run& other) const {
  return other.clock[one.thread] >= one.clock[one.thread];
}

void BackwardOrder::must_precede(const Run& one, const Run& other, int device) {
  if (!overlaps_[device] && !precedes(one, other)) {
    overlaps_[device] = {one.label, other.label};
  }
}

void BackwardOrder::begins(const Node& node, int label) {
  ends();
  Run run{label, thread_of(node), Clock(last_.size(), 0)};
  if (const auto awaited = awaited_.find(&node); awaited != awaited_.end()) {
    run.clock = std::move(awaited->second);
    awaited_.erase(awaited); // nodes that the backward makes may get the address
  }
  if (const auto& before = last_[run.thread]) {
    merge(run.clock, before->clock);
  }
  ++run.clock[run.thread];
  for (const auto& edge : node.next_edges()) {
    if (edge.is_valid()) {
      merge(awaited_.try_emplace(edge.function.get(), last_.size(), 0).first->second, run.clock);
      touched_[thread_of(*edge.function)] = true;
    }
  }
  for (const auto& visit : visits_[run.thread]) {
    must_precede(visit, run, run.thread);
  }
  visits_[run.thread].clear();
  now_ = std::move(run);
}

void BackwardOrder::touches(int device) {
  if (now_) {
    touched_[device] = true;
  }
}

void BackwardOrder::ends() {
  if (!now_) {
    return;
  }
  for (size_t d = 0; d < touched_.size(); ++d) {
    const int device = static_cast<int>(d);
    if (touched_[d] && device != now_->thread) {
      if (last_[d]) {
        must_precede(*last_[d], *now_, device);
      }
      for (const auto& visit : visits_[d]) {
        must_precede(visit, *now_, device);
      }
      std::erase_if(visits_[d], [&](const Run& visit) { return visit.thread == now_->thread; });
      visits_[d].push_back(*now_);
    }
    touched_[d] = false;
  }
  last_[now_->thread] = std::move(now_);
  now_.reset();
}

std::vector<std::optional<Overlap>> BackwardOrder::finish() {
  ends();
  return overlaps_;
}

} // namespace recals
