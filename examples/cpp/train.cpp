// Trains a rewritten module with LibTorch, without Python, and measures what a step holds.
//
//   train FILE.pt ROWS COLUMNS STEPS        the module takes f32[ROWS, COLUMNS] and returns a tensor
//
// Linking recals::runtime is all it takes to load the file. Prints the losses and, at the end, the measured peak.

#include <cstdlib>
#include <iostream>

#include <torch/torch.h>

#include <torch/script.h>

#include "runtime/memory_tracker.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: train FILE.pt ROWS COLUMNS STEPS\n";
    return 2;
  }
  const int64_t rows = std::atoll(argv[2]);
  const int64_t columns = std::atoll(argv[3]);
  const int steps = std::atoi(argv[4]);

  torch::manual_seed(0);
  auto module = torch::jit::load(argv[1]);
  module.train();
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    parameters.push_back(parameter);
    parameters.back().mutable_grad() = torch::zeros_like(parameter);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.05));
  const auto input = torch::randn({rows, columns});
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
