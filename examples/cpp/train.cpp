// Trains a rewritten module with LibTorch, without Python, and measures what a step holds.
//
//   train FILE.pt SHAPE STEPS        the module takes one f32 tensor, of SHAPE as in 8,3,224,224, and returns a tensor
//
// Linking recals::runtime is all it takes to load the file. Prints the losses and, at the end, the measured peak. A budget
// is for the shape that the file was planned for: with another one the program says so, and ends with 1.

#include <algorithm>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <torch/script.h>

#include "runtime/memory_tracker.h"

namespace {

/// "8,3,224,224"; throws std::exception for what is no shape.
std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    shape.push_back(std::stoll(part));
  }
  return shape;
}

void train(const std::string& file, const std::vector<int64_t>& shape, int steps) {
  torch::manual_seed(0);
  auto module = torch::jit::load(file);
  module.train();
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    parameters.push_back(parameter);
    parameters.back().mutable_grad() = torch::zeros_like(parameter);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.05));
  const auto input = torch::randn(shape);
  const auto target = torch::ones_like(module.forward({input}).toTensor().detach());

  int64_t peak = 0;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad(/*set_to_none=*/false);
    auto memory = recals::MemoryTracker::start(/*with_curve=*/false);
    double value = 0;
    {
      const auto loss = torch::mse_loss(module.forward({input}).toTensor(), target);
      loss.backward();
      value = loss.item<double>();
    }
    peak = std::max(peak, memory->devices()["cpu"].peak);
    memory->stop();
    optimizer.step();
    if (step == 0 || step + 1 == steps) {
      std::cout << "step " << step << " loss " << value << "\n";
    }
  }
  std::cout << "peak " << peak << " bytes\n";
}

/// What happened, in one line: errors in TorchScript have its traceback in front, those of LibTorch a stack behind.
std::string in_a_line(const std::exception& error) {
  const std::string text = error.what();
  const auto message = text.find("recals: ");
  const auto begin = message == std::string::npos ? 0 : message;
  return text.substr(begin, text.find('\n', begin) - begin);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: train FILE.pt SHAPE STEPS, as in: train small.pt 8,3,224,224 20\n";
    return 2;
  }
  try {
    train(argv[1], parse_shape(argv[2]), std::stoi(argv[3]));
  } catch (const std::exception& error) {
    std::cerr << "train: " << in_a_line(error) << "\n";
    return 1;
  }
}
