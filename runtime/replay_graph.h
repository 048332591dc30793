#pragma once

/// Which storages the replays of a program read and make.
///
/// Programs know registers; only a run knows which of them are views. Here a register stands for its storage: the first
/// register that showed it. Nodes that only make views are no nodes here; whoever reads a view reads what is below it.

#include <vector>

#include "runtime/program.h"

namespace recals {

struct ReplayGraph {
  /// `base`: per register, the first register on the same storage.
  ReplayGraph(const Program& program, std::vector<int> base);

  std::vector<int> base;
  std::vector<std::vector<int>> reads; ///< per node that replays run: registers, each once, in the order of its inputs
  std::vector<std::vector<int>> makes; ///< per such node: registers that it makes for replays and slots
  std::vector<int> maker; ///< per register: the node that makes it again; -1: it is held, or unpacked

 private:
  void read(const Program& program, int reg, std::vector<int>& into) const;
};

} // namespace recals
