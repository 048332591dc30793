/// Each recipe gives the bits of its op, whatever the numbers.

#include <gtest/gtest.h>

#include <limits>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>

#include "runtime/owned_slots.h"
#include "runtime/recipes.h"

namespace recals {
namespace {

using Op = at::Tensor (*)(const at::Tensor& input, double p);

void expect_same_bits(const std::string& op, Op run, const at::Tensor& input, double p) {
  const auto* recipe = recipe_of(op);
  ASSERT_NE(recipe, nullptr);
  const auto since = at::sequence_number::peek();
  const auto output = run(input, p);
  at::Tensor saved;
  for_each_owned_slot({output}, since, {{0, &input}, {1, &output}}, [&](const OwnedSlot& slot) {
    if (slot.internal == recipe->internal) {
      saved = slot.tensor;
    }
  });
  ASSERT_TRUE(saved.defined());
  at::NoGradGuard no_grad;
  const auto again = recipe->run(input, saved);
  EXPECT_EQ(again.strides(), output.strides());
  ASSERT_EQ(again.storage().nbytes(), output.storage().nbytes());
  EXPECT_EQ(0, std::memcmp(again.storage().data(), output.storage().data(), output.storage().nbytes()));
}

/// An input that needs a gradient and is no leaf, with every kind of number in it.
at::Tensor values(at::IntArrayRef sizes, c10::ScalarType dtype) {
  auto x = at::randn(sizes).to(dtype);
  auto flat = x.view({-1});
  const std::vector<double> special = {0.0, -0.0, INFINITY, -INFINITY, NAN, 1e-40, -1e-40, 6e4, -6e4};
  for (size_t i = 0; i < special.size(); ++i) {
    flat[static_cast<int64_t>(i)] = special[i];
  }
  return x.set_requires_grad(true).clone();
}

TEST(Recipes, DropoutFromItsNoise) {
  at::manual_seed(1);
  for (auto dtype : {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16}) {
    for (double p : {1e-3, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::to_string(p));
      const Op dropout = [](const at::Tensor& x, double p) { return at::dropout(x, p, true); };
      expect_same_bits("aten::dropout", dropout, values({7, 45}, dtype), p);
      expect_same_bits("aten::dropout", dropout, values({6, 10}, dtype).t(), p);
      expect_same_bits(
          "aten::dropout", dropout, values({2, 8, 4, 6}, dtype).contiguous(at::MemoryFormat::ChannelsLast), p);
      const Op features = [](const at::Tensor& x, double p) { return at::feature_dropout(x, p, true); };
      expect_same_bits("aten::feature_dropout", features, values({4, 8, 3, 5}, dtype), p);
    }
  }
}

TEST(Recipes, OnlyOpsThatHaveOne) {
  EXPECT_EQ(recipe_of("aten::alpha_dropout"), nullptr);
  EXPECT_EQ(recipe_of("aten::relu"), nullptr);
}

} // namespace
} // namespace recals
