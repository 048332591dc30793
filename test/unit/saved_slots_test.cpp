#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/custom_function.h>

#include "runtime/owned_slots.h"
#include "runtime/saved_slots.h"

namespace recals {
namespace {

at::Tensor leaf(at::IntArrayRef shape) {
  return at::randn(shape).set_requires_grad(true);
}

int slots_of(const at::Tensor& output) {
  int count = 0;
  EXPECT_TRUE(visit_saved_slots(*output.grad_fn(), [&](torch::autograd::SavedVariable& saved, const char*) {
    auto data = saved.get_raw_data();
    count += data && data->defined() ? 1 : 0;
  }));
  return count;
}

/// Every op of these makes a node; `Slots` are saved, of which a list of tensors is one for each element.
TEST(SavedSlots, TheTableKnowsTheNodesOfTheInstalledTorch) {
  const auto x = leaf({2, 3, 8, 8});
  const auto w = leaf({3, 3, 3, 3});
  const auto m = leaf({4, 4});
  const std::vector<std::pair<at::Tensor, int>> cases = {
      {x.abs(), 1}, // the first of the header
      {m * m, 2},
      {at::convolution(x, w, {}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1), 2},
      {std::get<0>(at::native_layer_norm(x, {8}, {}, {}, 1e-5)), 3},
      {at::cat({m, m}), 0},
      {at::stack({m, m}), 0},
      {std::get<0>(at::max(m, 1)), 1},
      {std::get<0>(at::linalg_svd(m)), 3},
      {at::_foreach_mul({m, m}, at::TensorList{m, m})[0], 4},
      {at::xlogy(m, m), 2},
      {at::_fft_r2c(m, {1}, 0, true), 1},
  };
  for (const auto& [output, slots] : cases) {
    EXPECT_EQ(slots_of(output), slots) << output.grad_fn()->name();
  }
}

TEST(SavedSlots, SingleMembersAndListsAreVisited) {
  auto x = leaf({4, 4});
  auto y = leaf({4, 4});
  EXPECT_EQ(slots_of(x * y), 2);
  EXPECT_EQ(slots_of(x.relu()), 1);
  EXPECT_EQ(slots_of(x + y), 0);
  // index saves a list of indices.
  EXPECT_EQ(slots_of(x.index({at::arange(2), at::arange(2)})), 2);
}

TEST(SavedSlots, NodesOfOneOpAreFoundInOrder) {
  auto x = leaf({4, 4});
  auto before = (x * 2).exp();
  const auto since = at::sequence_number::peek();
  auto after = (before * before).tanh();
  const auto nodes = nodes_made_since({after}, since);
  ASSERT_EQ(nodes.size(), 2);
  EXPECT_EQ(nodes[0]->name(), "MulBackward0");
  EXPECT_EQ(nodes[1]->name(), "TanhBackward0");
}

struct Doubled : public torch::autograd::Function<Doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    return {gradients[0] * 2};
  }
};

TEST(SavedSlots, CustomFunctionsAreUnknownAndLeftAlone) {
  auto output = Doubled::apply(leaf({4}));
  EXPECT_FALSE(visit_saved_slots(*output.grad_fn(), [](torch::autograd::SavedVariable&, const char*) { FAIL(); }));
}

TEST(OwnedSlots, ShownAndInternalStoragesAreToldApart) {
  auto x = leaf({2, 3, 8});
  auto w = leaf({4, 8});
  auto input = x * 1;
  const auto since = at::sequence_number::peek();
  auto output = at::linear(input, w); // saves a view of input, and w
  int views = 0;
  int weights = 0;
  for_each_owned_slot({output}, since, {{0, &input}, {1, &w}, {2, &output}}, [&](const OwnedSlot& slot) {
    views += slot.reg == 0 && slot.tensor.dim() == 2 ? 1 : 0;
    weights += slot.reg == 1 ? 1 : 0;
    EXPECT_EQ(slot.internal, -1);
  });
  EXPECT_EQ(views, 1);
  EXPECT_EQ(weights, 1);
}

TEST(OwnedSlots, AMaskIsInternal) {
  auto x = leaf({64}) * 1;
  const auto since = at::sequence_number::peek();
  auto output = at::dropout(x, 0.5, true);
  std::vector<int> internals;
  for_each_owned_slot({output}, since, {{0, &x}, {1, &output}}, [&](const OwnedSlot& slot) {
    if (slot.reg < 0) {
      internals.push_back(slot.internal);
    }
  });
  EXPECT_EQ(internals, std::vector<int>{0});
}

} // namespace
} // namespace recals
