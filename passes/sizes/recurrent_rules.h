#pragma once

/// Recurrent networks as the CPU runs them. On meta, torch takes another way: it multiplies the inputs step by step instead
/// of all at once, and has no oneDNN.

#include <optional>

#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/runtime/operator.h>

namespace recals {

/// What runs on meta in place of `node`, if that is lstm, gru, rnn_tanh or rnn_relu.
std::optional<torch::jit::Operation> recurrent_on_meta(const torch::jit::Node& node);

} // namespace recals
