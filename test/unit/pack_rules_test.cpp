/// What a dry run offers to pack is packed in a real step, which must give the plain bits: what a rule says of a
/// backward's kernel is proved by the kernel.

#include <gtest/gtest.h>

#include <ATen/Context.h>

#include "runtime/counters.h"
#include "test/unit/step.h"

namespace recals::testing {
namespace {

struct Case {
  const char* name;
  const char* packer; ///< that must be offered and used
  const char* body; ///< from x, a value of the graph that requires grad
  std::vector<int64_t> input;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"relu", "where positive", "torch.relu(x)", {7, 33}},
      {"leaky_relu", "where above zero", "torch.leaky_relu(x, 0.1)", {7, 33}},
      {"dropout", "two values", "torch.dropout(x, 0.3, True)", {7, 33}},
      {"feature_dropout", "two values", "torch.feature_dropout(x, 0.3, True)", {9, 65, 3}},
      {"alpha_dropout", "two values", "torch.alpha_dropout(x, 0.3, True)", {7, 33}},
      {"feature_alpha_dropout", "two values", "torch.feature_alpha_dropout(x, 0.3, True)", {9, 65, 3}},
      {"attention_dropout",
       "two values",
       "torch.scaled_dot_product_attention(x, torch.tanh(x), torch.mul(x, 2.0), None, 0.3)",
       {2, 2, 12, 8}},
      {"masked_fill", "booleans", "torch.masked_fill(x, torch.gt(torch.tanh(x), 0.5), 2.0)", {7, 33}},
      {"where", "booleans", "torch.where(torch.lt(x, 0.0), torch.mul(x, 2.0), torch.neg(x))", {7, 33}},
      {"max_pool1d", "positions u8", "torch.max_pool1d(x, [3], [2], [1])", {2, 5, 33}},
      {"max_pool2d", "positions u8", "torch.max_pool2d(x, [3, 3], [2, 2], [1, 1])", {2, 5, 16, 16}},
      {"max_pool2d_wide", "positions u16", "torch.max_pool2d(x, [3, 3], [2, 2], [1, 1])", {1, 2, 17, 18}},
      {"max_pool2d_unread", "unread", "torch.max_pool2d(x, [3, 3], [2, 2], [1, 1])", {2, 5, 16, 16}},
      {"max_pool3d", "positions u16", "torch.max_pool3d(x, [2, 2, 2], [2, 2, 2])", {1, 2, 8, 8, 8}},
      {"max_pool3d_unread", "unread", "torch.max_pool3d(x, [2, 2, 2], [2, 2, 2])", {1, 2, 8, 8, 8}},
      {"adaptive_max_pool2d", "positions u8", "torch.adaptive_max_pool2d(x, [3, 5])[0]", {2, 5, 16, 16}},
      {"adaptive_max_pool2d_unread", "unread", "torch.adaptive_max_pool2d(x, [3, 5])[0]", {2, 5, 16, 16}},
      {"adaptive_max_pool3d_unread", "unread", "torch.adaptive_max_pool3d(x, [3, 5, 2])[0]", {2, 5, 8, 8, 8}},
      {"avg_pool2d", "unread", "torch.avg_pool2d(x, [2, 3], [2, 1], [1, 1])", {2, 5, 16, 16}},
      {"avg_pool3d", "unread", "torch.avg_pool3d(x, [2, 2, 2], [2, 2, 2])", {1, 2, 8, 8, 8}},
      {"adaptive_avg_pool2d", "unread", "torch._adaptive_avg_pool2d(x, [3, 5])", {2, 5, 16, 16}},
      {"adaptive_avg_pool3d", "unread", "torch._adaptive_avg_pool3d(x, [3, 5, 2])", {2, 5, 8, 8, 8}},
      {"reflection_pad1d", "unread", "torch.reflection_pad1d(x, [2, 3])", {2, 5, 16}},
      {"reflection_pad2d", "unread", "torch.reflection_pad2d(x, [2, 3, 1, 1])", {2, 5, 16, 16}},
      {"reflection_pad3d", "unread", "torch.reflection_pad3d(x, [1, 1, 2, 2, 1, 2])", {2, 5, 8, 8, 8}},
      {"replication_pad1d", "unread", "torch.replication_pad1d(x, [2, 3])", {2, 5, 16}},
      {"replication_pad2d", "unread", "torch.replication_pad2d(x, [2, 3, 1, 1])", {2, 5, 16, 16}},
      {"replication_pad3d", "unread", "torch.replication_pad3d(x, [1, 1, 2, 2, 1, 2])", {2, 5, 8, 8, 8}},
      {"max", "positions u8", "torch.max(x, 1)[0]", {7, 256}},
      {"min", "positions u16", "torch.min(x, 1)[0]", {7, 257}},
      {"sort", "positions u8", "torch.sort(x, 1)[0]", {7, 33}},
      {"topk", "positions u8", "torch.topk(x, 3, 1)[0]", {7, 33}},
      {"kthvalue", "positions u8", "torch.kthvalue(x, 3, 1)[0]", {7, 33}},
      {"median", "positions u8", "torch.median(x, 1)[0]", {7, 33}},
      {"mode", "positions u8", "torch.mode(x, 1)[0]", {7, 33}},
      {"relu_and_pool", "where positive", "torch.max_pool2d(torch.relu(x), [3, 3], [2, 2], [1, 1])", {2, 5, 16, 16}},
  };
  return all;
}

class PackRules : public ::testing::TestWithParam<Case> {
 protected:
  // Memory that is not written holds NaN, not by chance what was freed there.
  PackRules() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
    at::globalContext().setDeterministicFillUninitializedMemory(true);
  }
  ~PackRules() override {
    at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }

  /// A step whose gradient shows what the op's backward makes of its slots.
  torch::jit::Module module_for(c10::ScalarType dtype) {
    auto module = module_of(
        {{"w", {GetParam().input.back()}}},
        "def forward(self, input):\n"
        "  x = torch.mul(input, self.w)\n"
        "  y = " +
            std::string(GetParam().body) +
            "\n"
            "  return torch.mul(y, torch.detach(torch.exp(torch.tanh(y))))\n");
    module.to(dtype);
    return module;
  }

  plan::Plan plan_that_packs(const Analysis& analysis) {
    return plan_of_choices(analysis, [&](const plan::Storage& storage) {
      plan::Choice choice;
      for (size_t i = 0; i < storage.packs.size(); ++i) {
        if (storage.packs[i].kind == GetParam().packer) {
          choice.fate = plan::Fate::Pack;
          choice.pack = static_cast<int>(i);
        }
      }
      return choice;
    });
  }

  /// What the kernels make of special values, too.
  static at::Tensor values(at::IntArrayRef sizes, c10::ScalarType dtype) {
    at::manual_seed(5);
    auto x = at::randn(sizes, dtype);
    auto flat = x.view({-1});
    flat[0] = 0.0;
    flat[1] = -0.0;
    flat[2] = std::numeric_limits<double>::infinity();
    flat[3] = -std::numeric_limits<double>::infinity();
    flat[4] = std::numeric_limits<double>::quiet_NaN();
    return x;
  }
};

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const auto x = a.contiguous();
  const auto y = b.contiguous();
  return x.nbytes() == y.nbytes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

TEST_P(PackRules, GiveThePlainBits) {
  for (auto dtype : {c10::kFloat, c10::kDouble, c10::kBFloat16}) {
    auto module = module_for(dtype);
    for (auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      auto input = values(GetParam().input, dtype);
      if (format == at::MemoryFormat::ChannelsLast) {
        if (input.dim() != 4) {
          continue;
        }
        input = input.contiguous(format);
      }
      SCOPED_TRACE(c10::toString(dtype));
      Analysis analysis;
      StepResult plain;
      try {
        analysis = analyse(module, "forward", {input});
        plain = run_step(module, Program::compile(analysis.flat.graph), {input});
      } catch (const c10::Error& error) {
        ASSERT_EQ(dtype, c10::kBFloat16) << error.what(); // which not every kernel knows
        continue;
      }
      const auto plan = plan_that_packs(analysis);
      reset_counters();
      const auto packed = run_step(module, program_under(analysis, plan, false), {input});
      EXPECT_GT(counters().packs.load(), 0);
      EXPECT_GE(counters().unpacks.load(), counters().packs.load());
      EXPECT_EQ(counters().replays.load(), 0);
      EXPECT_TRUE(same_bits(packed.outputs[0], plain.outputs[0]));
      EXPECT_TRUE(same_bits(packed.gradients[0], plain.gradients[0]));
      EXPECT_EQ(packed.left, 0);
    }
  }
}

TEST_P(PackRules, GiveThePlainBitsOfADoubleBackward) {
  auto module = module_for(c10::kFloat);
  const auto input = values(GetParam().input, c10::kFloat).nan_to_num(0.5, 2.0, -2.0);
  const auto analysis = analyse(module, "forward", {input});
  const auto weight = module.attr("w").toTensor();
  auto penalty = [&](const std::shared_ptr<const Program>& program) {
    at::manual_seed(3);
    const auto loss = run(program, module._ivalue(), {input}).at(0).square().sum();
    const auto gradient = torch::autograd::grad({loss}, {weight}, {}, std::nullopt, /*create_graph=*/true).at(0);
    return torch::autograd::grad({gradient.square().sum()}, {weight}).at(0);
  };
  const auto plain = penalty(Program::compile(analysis.flat.graph));
  EXPECT_TRUE(same_bits(penalty(program_under(analysis, plan_that_packs(analysis), false)), plain));
}

INSTANTIATE_TEST_SUITE_P(Ops, PackRules, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.name);
});

} // namespace
} // namespace recals::testing
