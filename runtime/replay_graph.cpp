#include "runtime/replay_graph.h"

#include <algorithm>

namespace recals {

ReplayGraph::ReplayGraph(const Program& program, std::vector<int> bases)
    : base(std::move(bases)),
      reads(program.nodes.size()),
      makes(program.nodes.size()),
      maker(program.registers.size(), -1) {
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const auto& node = program.nodes[n];
    if (!node.replayed) {
      continue;
    }
    for (int reg : node.outputs) {
      if (base[reg] == reg && program.runs_again(reg)) {
        makes[n].push_back(reg);
      }
    }
    for (const auto& internal : node.internals) {
      if (program.runs_again(internal.reg)) {
        makes[n].push_back(internal.reg);
      }
    }
    if (makes[n].empty()) {
      continue;
    }
    for (int reg : makes[n]) {
      maker[reg] = static_cast<int>(n);
    }
    for (int reg : node.inputs) {
      read(program, reg, reads[n]);
    }
    if (node.recipe != nullptr) {
      read(program, node.recipe_reg, reads[n]);
    }
  }
}

void ReplayGraph::read(const Program& program, int reg, std::vector<int>& into) const {
  if (program.is_held(reg) || base[reg] == reg) {
    if (std::find(into.begin(), into.end(), reg) == into.end()) {
      into.push_back(reg);
    }
    return;
  }
  for (int below : program.nodes[program.registers[reg].producer].inputs) {
    read(program, below, into);
  }
}

} // namespace recals
