#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

// --- picking -----------------------------------------------------------------------------------------------------------

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK(index.dim() <= 1, "index_select: expected a vector of indices, got ", index.sizes());
  at::DimVector sizes(self.sizes());
  if (!sizes.empty()) {
    sizes[c10::maybe_wrap_dim(dim, self.dim())] = index.numel();
  }
  return make(self, sizes);
}

at::Tensor take(const at::Tensor& self, const at::Tensor& index) {
  return make(self, index.sizes());
}

/// At most as many as there are elements: the derivative of index_fill sums up over them.
std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool /*sorted*/, bool return_inverse) {
  return {
      make(self, {self.numel()}), return_inverse ? make(self, self.sizes(), at::kLong) : make(self, {0}, at::kLong)};
}

at::Tensor& masked_scatter_(at::Tensor& self, const at::Tensor& /*mask*/, const at::Tensor& /*source*/) {
  return self;
}

/// What the mask picks, filled up with zeros.
at::Tensor masked_scatter_backward(const at::Tensor& grad, const at::Tensor& /*mask*/, at::IntArrayRef sizes) {
  return make(grad, sizes);
}

// --- moving ------------------------------------------------------------------------------------------------------------

at::Tensor flip(const at::Tensor& self, at::IntArrayRef /*dims*/) {
  return at::empty_like(self, at::MemoryFormat::Preserve);
}

/// The kernel concatenates the two parts, one dimension after the other.
at::Tensor roll(const at::Tensor& self, at::IntArrayRef shifts, at::IntArrayRef dims) {
  if (dims.size() != 1 || shifts.size() != 1) {
    TORCH_CHECK(
        !shifts.empty() && (dims.empty() ? shifts.size() == 1 : shifts.size() == dims.size()),
        "roll: shifts ",
        shifts,
        " and dimensions ",
        dims,
        " do not go together");
    if (dims.empty()) {
      return at::roll(self.contiguous().view(-1), shifts[0], 0).view(self.sizes());
    }
    return at::roll(at::roll(self, shifts[0], dims[0]), shifts.slice(1), dims.slice(1));
  }
  if (self.numel() == 0) {
    return at::empty_like(self, at::MemoryFormat::Preserve);
  }
  const int64_t size = self.size(dims[0]);
  int64_t start = (size - shifts[0]) % size;
  start += start < 0 ? size : 0;
  return at::cat({self.narrow(dims[0], start, size - start), self.narrow(dims[0], 0, start)}, dims[0]);
}

at::Tensor channel_shuffle(const at::Tensor& self, int64_t /*groups*/) {
  return make_suggested(self);
}

at::Tensor unfold_backward(
    const at::Tensor& grad,
    at::IntArrayRef input_sizes,
    int64_t /*dim*/,
    int64_t /*size*/,
    int64_t /*step*/) {
  return make(grad, input_sizes);
}

// --- columns of images -------------------------------------------------------------------------------------------------

at::Tensor im2col(
    const at::Tensor& self,
    at::IntArrayRef kernel,
    at::IntArrayRef dilation,
    at::IntArrayRef padding,
    at::IntArrayRef stride) {
  const bool batched = self.dim() == 4;
  const int64_t first = batched ? 2 : 1;
  int64_t columns = 1;
  for (int64_t d = 0; d < 2; ++d) {
    const int64_t reach = dilation[d] * (kernel[d] - 1) + 1;
    columns *= (self.size(first + d) + 2 * padding[d] - reach) / stride[d] + 1;
  }
  const int64_t rows = self.size(first - 1) * product(kernel);
  return batched ? make(self, {self.size(0), rows, columns}) : make(self, {rows, columns});
}

at::Tensor col2im(
    const at::Tensor& self,
    at::IntArrayRef output_size,
    at::IntArrayRef kernel,
    at::IntArrayRef /*dilation*/,
    at::IntArrayRef /*padding*/,
    at::IntArrayRef /*stride*/) {
  at::DimVector sizes(self.sizes().begin(), self.sizes().end() - 2);
  sizes.push_back(self.size(-2) / product(kernel));
  sizes.append(output_size.begin(), output_size.end());
  // The kernel's output begins with the sizes of the input, and its storage stays that large.
  auto out = make_contiguous(self);
  return resized(out, sizes);
}

// --- grids -------------------------------------------------------------------------------------------------------------

/// A point of the input for each one of the output. LibTorch's form puts a grid together on a meta device of its own.
at::Tensor affine_grid_generator(const at::Tensor& theta, at::IntArrayRef size, bool /*align_corners*/) {
  TORCH_CHECK(
      (size.size() == 4 || size.size() == 5) && theta.dim() == 3,
      "affine_grid_generator: sizes of 4 or 5 dimensions, not ",
      size);
  at::DimVector sizes(size);
  sizes.erase(sizes.begin() + 1); // the channels
  sizes.push_back(static_cast<int64_t>(size.size()) - 2);
  return make(theta, sizes);
}

at::Tensor grid_sampler(
    const at::Tensor& input,
    const at::Tensor& grid,
    int64_t /*interpolation*/,
    int64_t /*padding*/,
    bool /*align_corners*/) {
  at::DimVector sizes(input.sizes());
  for (int64_t d = 2; d < input.dim(); ++d) {
    sizes[d] = grid.size(d - 1);
  }
  return make(input, sizes);
}

std::tuple<at::Tensor, at::Tensor> grid_sampler_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& input,
    const at::Tensor& grid,
    int64_t /*interpolation*/,
    int64_t /*padding*/,
    bool /*align_corners*/,
    std::array<bool, 2> wanted) {
  return {wanted[0] ? make_contiguous(input) : at::Tensor(), make_contiguous(grid)};
}

// --- triangles ---------------------------------------------------------------------------------------------------------

/// How many elements are on or below the diagonal `offset`.
int64_t below(int64_t rows, int64_t columns, int64_t offset) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    count += std::clamp<int64_t>(row + offset + 1, 0, columns);
  }
  return count;
}

at::Tensor tril_indices(
    int64_t rows,
    int64_t columns,
    int64_t offset,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device,
    std::optional<bool> /*pin_memory*/) {
  return at::empty(
      {2, below(rows, columns, offset)}, at::TensorOptions().device(device).dtype(dtype.value_or(at::kLong)));
}

at::Tensor triu_indices(
    int64_t rows,
    int64_t columns,
    int64_t offset,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device,
    std::optional<bool> /*pin_memory*/) {
  return at::empty(
      {2, rows * columns - below(rows, columns, offset - 1)},
      at::TensorOptions().device(device).dtype(dtype.value_or(at::kLong)));
}

// --- assertions --------------------------------------------------------------------------------------------------------

void assert_async(const at::Tensor& /*self*/) {}

void assert_async_msg(const at::Tensor& /*self*/, std::string_view /*message*/) {}

} // namespace

void add_indexing_kernels(MetaRegistrar& registrar) {
  registrar.add("index_select", &index_select);
  registrar.add("take", &take);
  registrar.add("_unique", &unique);
  registrar.add("masked_scatter_", &masked_scatter_);
  registrar.add("masked_scatter_backward", &masked_scatter_backward);
  registrar.add("flip", &flip);
  registrar.add("roll", &roll);
  registrar.add("channel_shuffle", &channel_shuffle);
  registrar.add("unfold_backward", &unfold_backward);
  registrar.add("im2col", &im2col);
  registrar.add("col2im", &col2im);
  registrar.add("affine_grid_generator", &affine_grid_generator);
  registrar.add("grid_sampler_2d", &grid_sampler);
  registrar.add("grid_sampler_2d_backward", &grid_sampler_backward);
  registrar.add("grid_sampler_3d", &grid_sampler);
  registrar.add("grid_sampler_3d_backward", &grid_sampler_backward);
  registrar.add("tril_indices", &tril_indices);
  registrar.add("triu_indices", &triu_indices);
  registrar.add("_assert_async", &assert_async);
  registrar.add("_assert_async.msg", &assert_async_msg);
}

} // namespace recals
