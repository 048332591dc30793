/// Whole modules analysed without Python: what is predicted is what the step takes.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/api/module.h>

#include <ATen/record_function.h>

#include "passes/pipeline.h"
#include "passes/sizes/recorder.h"
#include "runtime/executor.h"
#include "runtime/memory_tracker.h"

namespace recals {
namespace {

using torch::jit::Module;

struct Bytes {
  int64_t peak = 0;
  int64_t held = 0;
};

void add_parameters(Module& module, const std::vector<std::pair<std::string, std::vector<int64_t>>>& shapes) {
  at::manual_seed(0);
  for (const auto& [name, sizes] : shapes) {
    auto parameter = at::randn(sizes).mul_(0.2).set_requires_grad(true);
    parameter.mutable_grad() = at::zeros(sizes);
    module.register_parameter(name, parameter, /*is_buffer=*/false);
  }
}

/// One real step, run op by op.
Bytes measured(const Analysis& analysis, const Module& module, const std::vector<c10::IValue>& inputs) {
  std::vector<at::Tensor> tensors;
  for (const auto& input : inputs) {
    collect_tensors(input, tensors);
  }
  const auto program = Program::compile(analysis.flat.graph);
  Bytes bytes;
  auto tracker = MemoryTracker::start(/*with_curve=*/false);
  {
    auto output = run(program, module._ivalue(), tensors).at(0);
    bytes.held = tracker->devices()["cpu"].live;
    if (output.dim() > 0) {
      output = at::cross_entropy_loss(output, at::zeros({output.size(0)}, at::kLong));
    }
    torch::autograd::backward({output}, {});
  }
  bytes.peak = tracker->devices()["cpu"].peak;
  tracker->stop();
  return bytes;
}

void expect_exact(const Module& module, const std::vector<c10::IValue>& inputs) {
  const auto analysis = analyse(module, "forward", inputs);
  const auto real = measured(analysis, module, inputs);
  EXPECT_EQ(analysis.sizes.held[0], real.held);
  EXPECT_GE(analysis.sizes.peak[0], real.peak);
}

TEST(AnalysisWithoutPython, ConvolutionalNetwork) {
  Module module("Net");
  add_parameters(
      module,
      {{"kernel", {8, 3, 3, 3}}, {"up", {8, 8, 2, 2}}, {"scale", {8}}, {"shift", {8}}, {"w", {10, 32}}, {"b", {10}}});
  module.register_buffer("mean", at::zeros({8}));
  module.register_buffer("var", at::ones({8}));
  module.define(R"(
    def forward(self, x):
        y = torch.conv2d(x, self.kernel, None, [1, 1], [1, 1], [1, 1], 1)
        y = torch.batch_norm(y, self.scale, self.shift, self.mean, self.var, True, 0.1, 1e-5, True)
        y = torch.relu(y)
        y = torch.feature_dropout(torch.max_pool2d(y, [2, 2], [2, 2], [0, 0], [1, 1], False), 0.1, True)
        z = torch.conv_transpose2d(y, self.up, None, [2, 2], [0, 0], [0, 0], 1, [1, 1])
        y = torch.cat([torch.adaptive_avg_pool2d(y, [2, 2]), torch.adaptive_avg_pool2d(z, [2, 2])], 1)
        return torch.linear(torch.flatten(y, 1)[:, :32], self.w, self.b)
  )");
  expect_exact(module, {at::randn({4, 3, 16, 16})});
  expect_exact(module, {at::randn({4, 3, 16, 16}).contiguous(at::MemoryFormat::ChannelsLast)});
}

TEST(AnalysisWithoutPython, TransformerBlock) {
  Module module("Block");
  add_parameters(
      module,
      {{"table", {17, 16}},
       {"g", {16}},
       {"b", {16}},
       {"qkv", {48, 16}},
       {"out", {16, 16}},
       {"up", {64, 16}},
       {"down", {16, 64}}});
  module.define(R"(
    def forward(self, tokens, targets):
        x = torch.dropout(torch.embedding(self.table, tokens), 0.1, True)
        n = torch.layer_norm(x, [16], self.g, self.b, 1e-5, True)
        q, k, v = torch.linear(n, self.qkv).view([2, 8, 3, 4, 4]).permute([2, 0, 3, 1, 4]).unbind(0)
        scores = torch.matmul(q, k.transpose(-2, -1)) * 0.5
        future = torch.triu(torch.ones([8, 8], dtype=11), 1)
        scores = torch.masked_fill(scores, future, -10000.0)
        a = torch.matmul(torch.dropout(torch.softmax(scores, -1), 0.1, True), v)
        x = x + torch.linear(a.transpose(1, 2).reshape([2, 8, 16]), self.out)
        s = torch.scaled_dot_product_attention(q, k, v, None, 0.1)
        x = x + torch.linear(s.transpose(1, 2).reshape([2, 8, 16]), self.out)
        n = torch.layer_norm(x, [16], self.g, self.b, 1e-5, True)
        x = x + torch.linear(torch.gelu(torch.linear(n, self.up)), self.down)
        return torch.cross_entropy_loss(torch.linear(x, self.table).view([16, 17]), targets.view([16]))
  )");
  expect_exact(module, {at::zeros({2, 8}, at::kLong), at::zeros({2, 8}, at::kLong)});
}

TEST(AnalysisWithoutPython, ChainOfPointwiseOps) {
  Module module("Chain");
  add_parameters(module, {{"w", {32, 32}}, {"slope", {1}}});
  module.define(R"(
    def forward(self, x):
        x = torch.exp(torch.tanh(torch.sigmoid(torch.linear(x, self.w))))
        x = torch.prelu(torch.hardtanh(torch.hardswish(x)), self.slope)
        x = torch.where(torch.logical_and(x > 0.1, x < 0.9), x, torch.abs(x))
        x = torch.roll(torch.flip(x, [0]), [1], [1]) + torch.logsumexp(x, [1], True)
        x = (x - torch.var(x, [1], True, True)) * torch.log_sigmoid(torch.glu(torch.cat([x, x], 1), 1))
        return torch.linear(torch.dropout(torch.silu(x), 0.5, True), self.w)
  )");
  expect_exact(module, {at::rand({64, 32})});
}

TEST(Recorder, WhatACallbackThrowsEndsTheRun) {
  Module module("Net");
  add_parameters(module, {{"w", {4, 4}}});
  module.define(R"(
    def forward(self, x):
        return torch.relu(torch.linear(x, self.w))
  )");
  const auto analysis = analyse(module, "forward", {at::randn({4, 4})});
  Recorder recorder(*analysis.program, analysis.targets, /*measured=*/false);
  {
    // A replay that does not say of which node; torch swallows what its callback throws.
    RECORD_FUNCTION("recals::replay_node", std::vector<c10::IValue>{});
  }
  EXPECT_THROW(recorder.finish(), std::exception);
}

} // namespace
} // namespace recals
