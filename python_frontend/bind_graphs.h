#pragma once

/// Graphs that a front end in Python writes: where their nodes stand in the user's code, and a module around one.

#include <torch/csrc/utils/pybind.h>

namespace recals {

void bind_graphs(pybind11::module& m);

} // namespace recals
