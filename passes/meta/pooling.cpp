#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

int64_t at_dim(at::IntArrayRef values, size_t dim) {
  return values.size() == 1 ? values[0] : values[dim];
}

/// How many windows fit; with `ceil`, also one that begins inside but ends beyond.
int64_t windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  int64_t count = (room + (ceil ? stride - 1 : 0)) / stride + 1;
  if (ceil && (count - 1) * stride >= size + padding) {
    --count;
  }
  return count;
}

/// The last sizes of `self` replaced.
at::DimVector with_last(const at::Tensor& self, at::IntArrayRef last) {
  TORCH_CHECK(
      self.dim() > static_cast<int64_t>(last.size()),
      "pooling: expected an input with channels and ",
      last.size(),
      " more dimensions, got ",
      self.sizes());
  at::DimVector sizes(self.sizes());
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<int64_t>(last.size()));
  return sizes;
}

at::Tensor adaptive_avg_pool2d(const at::Tensor& self, at::IntArrayRef output_size) {
  return make(self, with_last(self, output_size), self.suggest_memory_format());
}

at::Tensor adaptive_avg_pool3d(const at::Tensor& self, at::IntArrayRef output_size) {
  return make(self, with_last(self, output_size));
}

at::Tensor& adaptive_avg_pool2d_out(const at::Tensor& self, at::IntArrayRef output_size, at::Tensor& out) {
  return resized(out, with_last(self, output_size), self.suggest_memory_format());
}

at::Tensor adaptive_avg_pool2d_backward(const at::Tensor& /*grad*/, const at::Tensor& self) {
  return make_suggested(self);
}

at::Tensor adaptive_avg_pool3d_backward(const at::Tensor& /*grad*/, const at::Tensor& self) {
  return make_contiguous(self);
}

std::tuple<at::Tensor, at::Tensor> max_pool3d_with_indices(
    const at::Tensor& self,
    at::IntArrayRef kernel,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool ceil_mode) {
  const auto steps = stride.empty() ? kernel : stride;
  at::DimVector last;
  for (int64_t d = 0; d < 3; ++d) {
    last.push_back(windows(
        self.size(self.dim() - 3 + d),
        at_dim(kernel, d),
        at_dim(steps, d),
        at_dim(padding, d),
        at_dim(dilation, d),
        ceil_mode));
  }
  const auto sizes = with_last(self, last);
  const auto format = self.suggest_memory_format();
  return {make(self, sizes, format), at::empty(sizes, self.options().dtype(at::kLong).memory_format(format))};
}

at::Tensor max_pool3d_with_indices_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    at::IntArrayRef /*kernel*/,
    at::IntArrayRef /*stride*/,
    at::IntArrayRef /*padding*/,
    at::IntArrayRef /*dilation*/,
    bool /*ceil_mode*/,
    const at::Tensor& /*indices*/) {
  return make_suggested(self);
}

at::Tensor fractional_max_pool3d_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& self,
    at::IntArrayRef /*kernel*/,
    at::IntArrayRef /*output_size*/,
    const at::Tensor& /*indices*/) {
  return make_contiguous(self);
}

at::Tensor max_unpool2d(const at::Tensor& self, const at::Tensor& /*indices*/, at::IntArrayRef output_size) {
  return make(self, with_last(self, output_size), self.suggest_memory_format());
}

at::Tensor max_unpool3d(
    const at::Tensor& self,
    const at::Tensor& /*indices*/,
    at::IntArrayRef output_size,
    at::IntArrayRef /*stride*/,
    at::IntArrayRef /*padding*/) {
  return make(self, with_last(self, output_size));
}

} // namespace

void add_pooling_kernels(MetaRegistrar& registrar) {
  registrar.add("_adaptive_avg_pool2d", &adaptive_avg_pool2d);
  registrar.add("_adaptive_avg_pool2d_backward", &adaptive_avg_pool2d_backward);
  registrar.add("adaptive_avg_pool2d.out", &adaptive_avg_pool2d_out);
  registrar.add("_adaptive_avg_pool3d", &adaptive_avg_pool3d);
  registrar.add("_adaptive_avg_pool3d_backward", &adaptive_avg_pool3d_backward);
  registrar.add("max_pool3d_with_indices", &max_pool3d_with_indices);
  registrar.add("max_pool3d_with_indices_backward", &max_pool3d_with_indices_backward);
  registrar.add("fractional_max_pool3d_backward", &fractional_max_pool3d_backward);
  registrar.add("max_unpool2d", &max_unpool2d);
  registrar.add("max_unpool3d", &max_unpool3d);
}

} // namespace recals
