#include "passes/sizes/recurrent_rules.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace recals {

namespace {

using torch::jit::Stack;

enum class Kind : uint8_t { Lstm, Gru, Tanh, Relu };

/// The arguments that the ops have in common.
struct Call {
  Kind kind;
  at::Tensor input; ///< [batch, steps, width] if batch_first, else [steps, batch, width]
  std::vector<at::Tensor> states; ///< [layers * directions, batch, hidden]; LSTM: hidden and cell state
  std::vector<at::Tensor> weights; ///< per layer and direction: of the input, of the state, and what else there is
  bool has_biases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;

  int64_t directions() const {
    return bidirectional ? 2 : 1;
  }
};

/// The weights of one layer in one direction.
struct Weights {
  at::Tensor of_input;
  at::Tensor of_state;
  at::Tensor input_bias; ///< may be undefined, as all that follow
  at::Tensor state_bias;
  at::Tensor projection;

  Weights(const Call& call, int64_t index) {
    const auto per_layer = static_cast<int64_t>(call.weights.size()) / (call.layers * call.directions());
    const auto* own = &call.weights.at(static_cast<size_t>(index * per_layer));
    of_input = own[0];
    of_state = own[1];
    if (call.has_biases) {
      input_bias = own[2];
      state_bias = own[3];
    }
    if (per_layer % 2 == 1) {
      projection = own[per_layer - 1];
    }
  }
};

/// The state after a step; for an LSTM with the cell's.
struct State {
  at::Tensor hidden;
  at::Tensor cell;
};

/// `gates`: what the step's input contributes. The cells are those of ATen/native/RNN.cpp on a CPU.
State step(Kind kind, const at::Tensor& gates, const State& state, const Weights& weights) {
  auto own = at::linear(state.hidden, weights.of_state, weights.state_bias);
  switch (kind) {
    case Kind::Tanh:
      return {at::tanh(own.add_(gates)), {}};
    case Kind::Relu:
      return {at::relu(own.add_(gates)), {}};
    case Kind::Gru: {
      const auto from_input = gates.unsafe_chunk(3, 1);
      const auto from_state = own.unsafe_chunk(3, 1);
      const auto reset = from_state[0].add_(from_input[0]).sigmoid_();
      const auto update = from_state[1].add_(from_input[1]).sigmoid_();
      const auto fresh = from_input[2].add(from_state[2].mul_(reset)).tanh_();
      return {(state.hidden - fresh).mul_(update).add_(fresh), {}};
    }
    case Kind::Lstm: {
      const auto chunks = own.add_(gates).unsafe_chunk(4, 1);
      const auto in = chunks[0].sigmoid_();
      const auto forget = chunks[1].sigmoid_();
      const auto fresh = chunks[2].tanh_();
      const auto out = chunks[3].sigmoid_();
      const auto cell = (forget * state.cell).add_(in * fresh);
      auto hidden = out * cell.tanh();
      if (weights.projection.defined()) {
        hidden = at::matmul(hidden, weights.projection.t());
      }
      return {hidden, cell};
    }
  }
  return {};
}

struct Result {
  at::Tensor output;
  State last;
};

/// One layer in one direction, step by step. The products with the input are made for all steps at once; they live in
/// `gates` until those of the next direction are there.
Result by_steps(const Call& call, const at::Tensor& input, State state, int64_t index, std::vector<at::Tensor>& gates) {
  const bool reversed = call.bidirectional && index % 2 == 1;
  const Weights weights(call, index);
  gates = at::linear(input, weights.of_input, weights.input_bias).unbind(0);
  if (reversed) {
    std::reverse(gates.begin(), gates.end());
  }
  std::vector<at::Tensor> outputs;
  for (const auto& gate : gates) {
    state = step(call.kind, gate, state, weights);
    outputs.push_back(state.hidden);
  }
  if (reversed) {
    std::reverse(outputs.begin(), outputs.end());
  }
  return {at::stack(outputs, 0), state};
}

/// The same as one op of oneDNN.
Result by_layer(const Call& call, const at::Tensor& input, const State& state, int64_t index) {
  const Weights weights(call, index);
  const auto bias = [&](const at::Tensor& own, const at::Tensor& like) {
    return own.defined() ? own : at::zeros(like.sizes(), like.options());
  };
  constexpr int64_t lstm_mode = 2;
  auto [output, hidden, cell, workspace] = at::mkldnn_rnn_layer(
      input,
      weights.of_input,
      weights.of_state,
      bias(weights.input_bias, weights.of_input),
      bias(weights.state_bias, weights.of_state),
      state.hidden,
      state.cell,
      /*reverse=*/call.bidirectional && index % 2 == 1,
      /*batch_sizes=*/{},
      lstm_mode,
      call.states[0].size(2),
      call.layers,
      call.has_biases,
      call.bidirectional,
      call.batch_first,
      call.train);
  return {output, {hidden, cell}};
}

/// Does oneDNN compute in bfloat16 on this machine? (In training it never does in half.)
bool has_bfloat16() {
  static const bool known = [] {
    const auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    Stack answer;
    if (op) {
      op->callBoxed(answer);
    }
    return op && answer.back().toBool();
  }();
  return known;
}

/// Does lstm take oneDNN's layers? The conditions are those of torch's own choice (ATen/native/RNN.cpp).
bool takes_layers(const Call& call) {
  const auto type = call.input.scalar_type();
  const bool computes = type == at::kFloat || (type == at::kBFloat16 && has_bfloat16());
  return call.kind == Kind::Lstm && at::globalContext().userEnabledMkldnn() && call.input.numel() != 0 && computes &&
      !Weights(call, 0).projection.defined();
}

/// All layers. The results are on the stack as the ops return them.
void run(const Call& call, Stack& stack) {
  const bool layers = takes_layers(call);
  auto input = call.batch_first ? call.input.transpose(0, 1) : call.input;
  if (layers) {
    input = input.contiguous();
  }
  std::vector<at::Tensor> hidden;
  std::vector<at::Tensor> cells;
  const auto initial = call.states[0].unbind(0);
  const auto initial_cells =
      call.kind == Kind::Lstm ? call.states[1].unbind(0) : std::vector<at::Tensor>(initial.size());
  for (int64_t layer = 0; layer < call.layers; ++layer) {
    std::vector<at::Tensor> outputs;
    std::vector<at::Tensor> gates;
    for (int64_t direction = 0; direction < call.directions(); ++direction) {
      const auto index = layer * call.directions() + direction;
      const State state{initial.at(index), initial_cells.at(index)};
      const auto result = layers ? by_layer(call, input, state, index) : by_steps(call, input, state, index, gates);
      outputs.push_back(result.output);
      hidden.push_back(result.last.hidden);
      cells.push_back(result.last.cell);
    }
    input = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    outputs.clear();
    gates.clear();
    if (call.dropout != 0 && call.train && layer + 1 < call.layers) {
      input = at::dropout(input, call.dropout, /*train=*/true);
    }
  }
  stack.emplace_back(call.batch_first ? input.transpose(0, 1) : input);
  stack.emplace_back(at::stack(hidden, 0));
  if (call.kind == Kind::Lstm) {
    stack.emplace_back(at::stack(cells, 0));
  }
}

std::optional<Kind> kind_of(const torch::jit::Node& node) {
  const auto kind = node.kind();
  if (kind == c10::aten::lstm) {
    return Kind::Lstm;
  }
  if (kind == c10::aten::gru) {
    return Kind::Gru;
  }
  if (kind == c10::aten::rnn_tanh) {
    return Kind::Tanh;
  }
  if (kind == c10::aten::rnn_relu) {
    return Kind::Relu;
  }
  return std::nullopt;
}

} // namespace

std::optional<torch::jit::Operation> recurrent_on_meta(const torch::jit::Node& node) {
  const auto kind = kind_of(node);
  const auto* schema = node.maybeSchema();
  if (!kind || schema == nullptr || schema->overload_name() != "input") { // packed sequences stay as they are
    return std::nullopt;
  }
  return [kind = *kind](Stack& stack) {
    constexpr size_t count = 9;
    auto argument = [&](size_t i) -> const c10::IValue& { return stack[stack.size() - count + i]; };
    Call call{
        kind,
        argument(0).toTensor(),
        kind == Kind::Lstm ? argument(1).toTensorVector() : std::vector<at::Tensor>{argument(1).toTensor()},
        argument(2).toTensorVector(),
        argument(3).toBool(),
        argument(4).toInt(),
        argument(5).toDouble(),
        argument(6).toBool(),
        argument(7).toBool(),
        argument(8).toBool()};
    torch::jit::drop(stack, count);
    run(call, stack);
  };
}

} // namespace recals
