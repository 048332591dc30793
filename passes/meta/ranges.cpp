/// Numbers in a row. LibTorch's kernels end at once on the first meta device and go on to draw the row on others.

#include <cmath>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

/// As torch counts them (ATen/native/RangeFactories.cpp): whole numbers exactly, others in double precision.
int64_t steps_between(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
  if (start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true)) {
    const int64_t by = step.toLong();
    const int64_t distance = end.toLong() - start.toLong();
    return distance / by + (distance % by != 0 ? 1 : 0);
  }
  return static_cast<int64_t>(std::ceil((end.toDouble() - start.toDouble()) / step.toDouble()));
}

void check(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step) {
  const double by = step.toDouble();
  TORCH_CHECK(by != 0, "the step of a range must not be 0");
  TORCH_CHECK(
      (by > 0) == (end.toDouble() >= start.toDouble()) || end.toDouble() == start.toDouble(),
      "the bounds of a range and its step go into different directions");
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  check(start, end, step);
  return resized(out, {steps_between(start, end, step)});
}

at::Tensor& range_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  check(start, end, step);
  return resized(out, {static_cast<int64_t>((end.toDouble() - start.toDouble()) / step.toDouble()) + 1});
}

at::Tensor& linspace_out(const at::Scalar& /*start*/, const at::Scalar& /*end*/, int64_t steps, at::Tensor& out) {
  return resized(out, {steps});
}

at::Tensor& logspace_out(
    const at::Scalar& /*start*/,
    const at::Scalar& /*end*/,
    int64_t steps,
    double /*base*/,
    at::Tensor& out) {
  return resized(out, {steps});
}

} // namespace

void add_range_kernels(MetaRegistrar& registrar) {
  registrar.add("arange.start_out", &arange_out);
  registrar.add("range.out", &range_out);
  registrar.add("linspace.out", &linspace_out);
  registrar.add("logspace.out", &logspace_out);
}

} // namespace recals
