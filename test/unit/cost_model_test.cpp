/// Cost models: what a file may say, and what follows from it; times measured on the nodes.

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "passes/sizes/profile.h"
#include "test/unit/step.h"

namespace recals {
namespace {

using nlohmann::json;

json good() {
  return {
      {"format", 1},
      {"name", "test"},
      {"device", "cpu"},
      {"threads", 2},
      {"seconds_per_call", 1.0},
      {"matmul_flops_per_second", {{"f32", 10.0}, {"bf16", 40.0}}},
      {"convolution_flops_per_second", {{"f32", 20.0}}},
      {"bytes_per_second", {{"pointwise", 2.0}, {"reduction", 4.0}, {"copy", 8.0}}},
      {"seconds_per_element", {{"random", 3.0}, {"transcendental", 5.0}, {"batch_norm", 7.0}, {"pooling", 9.0}}},
  };
}

TEST(CostModel, SecondsByHand) {
  const auto model = parse_cost_model(good().dump(), "test");
  Work work;
  EXPECT_EQ(seconds_of(work, model), 0); // a view
  work.bytes = 16;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 2.0);
  work.kind = WorkKind::Reduction;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 4.0);
  work.kind = WorkKind::Copy;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0);
  work.elements = 2;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0);
  work.element_kind = ElementKind::Random;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0 + 2 * 3);
  work.element_kind = ElementKind::Transcendental;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0 + 2 * 5);
  work.element_kind = ElementKind::BatchNorm;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0 + 2 * 7);
  work.element_kind = ElementKind::Pooling;
  EXPECT_EQ(seconds_of(work, model), 1 + 16 / 8.0 + 2 * 9);
  work = {};
  work.kind = WorkKind::Matmul;
  work.bytes = 2;
  work.flops = 200;
  EXPECT_EQ(seconds_of(work, model), 1 + 200 / 10.0);
  work.dtype = c10::kBFloat16;
  EXPECT_EQ(seconds_of(work, model), 1 + 200 / 40.0);
  work.dtype = c10::kDouble; // not in the file: as f32
  EXPECT_EQ(seconds_of(work, model), 1 + 200 / 10.0);
  work.bytes = 1000; // bound by memory
  EXPECT_EQ(seconds_of(work, model), 1 + 1000 / 2.0);
  work.kind = WorkKind::Convolution;
  work.flops = 40000;
  EXPECT_EQ(seconds_of(work, model), 1 + 40000 / 20.0);
}

TEST(CostModel, HashIsThatOfTheText) {
  const auto text = good().dump();
  const auto model = parse_cost_model(text, "test");
  EXPECT_EQ(model.hash.size(), 16u);
  EXPECT_EQ(model.text, text);
  auto other = good();
  other["threads"] = 3;
  EXPECT_EQ(parse_cost_model(text, "elsewhere").hash, model.hash);
  EXPECT_NE(parse_cost_model(other.dump(), "test").hash, model.hash);
}

std::string error_of(const std::string& text) {
  try {
    parse_cost_model(text, "the-file.json");
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(CostModel, BadFilesAreRefusedByName) {
  auto expect = [](const json& document, const std::string& what) {
    const auto error = error_of(document.dump());
    EXPECT_NE(error.find("the-file.json"), std::string::npos) << error;
    EXPECT_NE(error.find(what), std::string::npos) << "'" << error << "' does not say: " << what;
  };
  EXPECT_EQ(error_of(good().dump()), "");
  EXPECT_NE(error_of("{").find("is not JSON"), std::string::npos);
  EXPECT_NE(error_of("").find("is not JSON"), std::string::npos);
  expect(json::array(), "no JSON object");
  const auto whole = good();
  for (const auto& [key, value] : whole.items()) {
    (void)value;
    auto document = good();
    document.erase(key);
    expect(document, "\"" + key + "\" is missing");
  }
  auto changed = [&](const std::string& pointer, const json& value, const std::string& what) {
    auto document = good();
    document[json::json_pointer(pointer)] = value;
    expect(document, what);
  };
  changed("/format", 2, "format 2");
  changed("/name", "", "\"name\"");
  changed("/device", 3, "\"device\"");
  changed("/threads", 0, "\"threads\"");
  changed("/threads", 1.5, "\"threads\"");
  changed("/seconds_per_call", 0, "\"seconds_per_call\"");
  changed("/seconds_per_element/random", -1, "\"seconds_per_element.random\"");
  changed("/seconds_per_element/pooling", "fast", "\"seconds_per_element.pooling\"");
  changed("/matmul_flops_per_second", 5, "\"matmul_flops_per_second\"");
  changed("/matmul_flops_per_second", {{"bf16", 1.0}}, "f32");
  changed("/convolution_flops_per_second/f32", nullptr, "\"convolution_flops_per_second.f32\"");
  changed("/bytes_per_second/copy", 0, "\"bytes_per_second.copy\"");
  changed("/bytes_per_second/cpoy", 1.0, "\"bytes_per_second.cpoy\"");
  changed("/seconds_per_cal", 1.0, "\"seconds_per_cal\"");
}

TEST(CostModel, BuiltInOnesAreGood) {
  EXPECT_EQ(cost_model_for("built-in", "cpu").device, "cpu");
  EXPECT_EQ(cost_model_for("built-in", "cuda:1").device, "cuda");
  EXPECT_THROW(cost_model_for("built-in", "mps"), c10::Error);
  EXPECT_THROW(cost_model_for("/no/such/file.json", "cpu"), c10::Error);
}

TEST(CostModel, OfAnotherDeviceIsRefused) {
  const auto path = ::testing::TempDir() + "recals_cost_model_test.json";
  std::ofstream(path) << good().dump();
  EXPECT_EQ(cost_model_for(path, "cpu").name, "test");
  EXPECT_THROW(cost_model_for(path, "cuda:0"), c10::Error);
  std::remove(path.c_str());
}

TEST(Profile, LeavesEverythingAsItIs) {
  // batch_norm writes statistics, dropout draws, add_ writes a buffer.
  torch::jit::Module net("Net");
  at::manual_seed(0);
  net.register_parameter("w", at::randn({64, 32}).set_requires_grad(true), false);
  net.register_buffer("mean", at::zeros({64}));
  net.register_buffer("var", at::ones({64}));
  net.register_buffer("count", at::zeros({1}));
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
    def forward(self, x):
        h = torch.linear(x, self.w)
        h = torch.batch_norm(h, None, None, self.mean, self.var, True, 0.1, 1e-5, True)
        h = torch.dropout(torch.relu(h), 0.5, True)
        self.count.add_(1)
        return h.sum()
  )");
  const auto input = at::randn({16, 32});
  const auto copy = input.clone();
  at::manual_seed(7);
  const auto expected = at::rand({4});
  at::manual_seed(7);
  const auto analysis = analyse(net, "forward", {input}, {.cost_model = kProfile});
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
  EXPECT_TRUE(at::equal(input, copy));
  EXPECT_TRUE(at::equal(net.attr("mean").toTensor(), at::zeros({64})));
  EXPECT_TRUE(at::equal(net.attr("var").toTensor(), at::ones({64})));
  EXPECT_TRUE(at::equal(net.attr("count").toTensor(), at::zeros({1})));
  EXPECT_FALSE(net.attr("w").toTensor().grad().defined());
  EXPECT_TRUE(net.attr("w").toTensor().is_leaf());

  const auto& step = analysis.sizes.step;
  EXPECT_EQ(step.cost_model.name, "profile");
  EXPECT_EQ(step.cost_model.hash, "");
  ASSERT_EQ(analysis.measured_seconds.size(), step.nodes.size());
  for (size_t n = 0; n < step.nodes.size(); ++n) {
    EXPECT_EQ(step.nodes[n].seconds, analysis.measured_seconds[n]);
    EXPECT_GT(step.nodes[n].seconds, 0) << step.nodes[n].op;
    EXPECT_LT(step.nodes[n].seconds, 1) << step.nodes[n].op;
  }
}

TEST(Profile, NeedsData) {
  const auto module = testing::module_of({{"w", {4, 3}}}, "def forward(self, x):\n  return torch.linear(x, self.w)\n");
  const auto analysis = analyse(module, "forward", {at::ones({2, 3})});
  try {
    measure_nodes(analysis.flat.graph, module._ivalue(), {at::ones({2, 3}, at::kMeta)});
    FAIL() << "inputs without data were measured";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("on meta"), std::string::npos) << error.what();
  }
}

} // namespace
} // namespace recals
