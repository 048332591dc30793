#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using TwoTensors = std::tuple<at::Tensor, at::Tensor>;

/// Sizes after a reduction over `dims`; over all if there are none.
at::DimVector reduced_sizes(const at::Tensor& self, at::OptionalIntArrayRef dims, bool keep) {
  std::vector<bool> gone(std::max<int64_t>(self.dim(), 1), !dims || dims->empty());
  for (const int64_t dim : dims.value_or(at::IntArrayRef{})) {
    gone[c10::maybe_wrap_dim(dim, self.dim())] = true;
  }
  at::DimVector sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!gone[d]) {
      sizes.push_back(self.size(d));
    } else if (keep) {
      sizes.push_back(1);
    }
  }
  return sizes;
}

at::Tensor over_all(const at::Tensor& self) {
  return make(self, {});
}

/// Values and where they were found.
TwoTensors along(const at::Tensor& self, int64_t dim, bool keep) {
  const auto sizes = reduced_sizes(self, dim, keep);
  return {make(self, sizes), make(self, sizes, at::kLong)};
}

// --- spread ------------------------------------------------------------------------------------------------------------

at::Tensor variance(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    const std::optional<at::Scalar>& /*correction*/,
    bool keep) {
  return make(self, reduced_sizes(self, dims, keep), c10::toRealValueType(self.scalar_type()));
}

TwoTensors variance_and_mean(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    const std::optional<at::Scalar>& correction,
    bool keep) {
  return {variance(self, dims, correction, keep), make(self, reduced_sizes(self, dims, keep))};
}

// --- sums, products, extremes ------------------------------------------------------------------------------------------

at::ScalarType sum_type(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return dtype.value_or(integral ? at::kLong : self.scalar_type());
}

at::Tensor nansum(
    const at::Tensor& self,
    at::OptionalIntArrayRef dims,
    bool keep,
    std::optional<at::ScalarType> dtype) {
  return make(self, reduced_sizes(self, dims, keep), sum_type(self, dtype));
}

at::Tensor prod(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return make(self, {}, sum_type(self, dtype));
}

at::Tensor count_nonzero(const at::Tensor& self, at::IntArrayRef dims) {
  return make(self, reduced_sizes(self, dims, false), at::kLong);
}

TwoTensors aminmax(const at::Tensor& self) {
  return {over_all(self), over_all(self)};
}

TwoTensors aminmax_dim(const at::Tensor& self, int64_t dim, bool keep) {
  const auto sizes = reduced_sizes(self, dim, keep);
  return {make(self, sizes), make(self, sizes)};
}

// --- order -------------------------------------------------------------------------------------------------------------

std::tuple<at::Tensor&, at::Tensor&> order_values(
    const at::Tensor& self,
    int64_t dim,
    bool keep,
    at::Tensor& values,
    at::Tensor& indices) {
  const auto sizes = reduced_sizes(self, dim, keep);
  return std::tie(resized(values, sizes), resized(indices, sizes));
}

std::tuple<at::Tensor&, at::Tensor&> kthvalue_values(
    const at::Tensor& self,
    int64_t /*k*/,
    int64_t dim,
    bool keep,
    at::Tensor& values,
    at::Tensor& indices) {
  return order_values(self, dim, keep, values, indices);
}

at::Tensor bucketize(const at::Tensor& self, const at::Tensor& /*boundaries*/, bool out_int32, bool /*right*/) {
  return make(self, self.sizes(), out_int32 ? at::kInt : at::kLong);
}

at::Tensor searchsorted(
    const at::Tensor& /*sorted*/,
    const at::Tensor& self,
    bool out_int32,
    bool /*right*/,
    std::optional<std::string_view> /*side*/,
    const OptionalTensor& /*sorter*/) {
  return make(self, self.sizes(), out_int32 ? at::kInt : at::kLong);
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& /*low*/, const at::Scalar& /*high*/) {
  return make(self, {bins});
}

/// Composite ops ask it whether something is wrong with a number (is_scalar_tensor_true of cov and istft), and it is not. A
/// module that asks is refused before (passes/graph/specialise.cpp).
bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 0 && other.dim() == 0, "aten::equal: Cannot copy out of meta tensor");
  return false;
}

// --- segments ----------------------------------------------------------------------------------------------------------

/// One element of the result for each of `lengths`, or for what is between two of `offsets`.
at::Tensor segment_reduce(
    const at::Tensor& data,
    c10::string_view /*reduce*/,
    const OptionalTensor& lengths,
    const OptionalTensor& /*indices*/,
    const OptionalTensor& offsets,
    int64_t axis,
    bool /*unsafe*/,
    const std::optional<at::Scalar>& /*initial*/) {
  TORCH_CHECK(
      defined(lengths) || defined(offsets),
      "segment_reduce: either lengths or offsets must be given (indices are not known)");
  auto sizes = data.sizes().vec();
  sizes[c10::maybe_wrap_dim(axis, data.dim())] = defined(lengths) ? lengths->size(-1) : offsets->size(-1) - 1;
  return make(data, sizes);
}

at::Tensor segment_reduce_backward(
    const at::Tensor& /*gradient*/,
    const at::Tensor& /*output*/,
    const at::Tensor& data,
    c10::string_view /*reduce*/,
    const OptionalTensor& /*lengths*/,
    const OptionalTensor& /*offsets*/,
    int64_t /*axis*/,
    const std::optional<at::Scalar>& /*initial*/) {
  return make_contiguous(data);
}

// --- running -----------------------------------------------------------------------------------------------------------

at::Tensor logcumsumexp(const at::Tensor& self, int64_t /*dim*/) {
  return make_contiguous(self);
}

/// The caller has made the outputs.
void cumulative_extreme(const at::Tensor& /*self*/, at::Tensor& /*values*/, at::Tensor& /*indices*/, int64_t /*dim*/) {}

} // namespace

void add_reduction_kernels(MetaRegistrar& registrar) {
  registrar.add("var.correction", &variance);
  registrar.add("std.correction", &variance);
  registrar.add("var_mean.correction", &variance_and_mean);
  registrar.add("std_mean.correction", &variance_and_mean);
  registrar.add("nansum", &nansum);
  registrar.add("prod", &prod);
  registrar.add("count_nonzero.dim_IntList", &count_nonzero);
  registrar.add("max", &over_all);
  registrar.add("min", &over_all);
  registrar.add("median", &over_all);
  registrar.add("nanmedian", &over_all);
  registrar.add("_aminmax", &aminmax);
  registrar.add("_aminmax.dim", &aminmax_dim);
  registrar.add("mode", &along);
  registrar.add("median.dim_values", &order_values);
  registrar.add("nanmedian.dim_values", &order_values);
  registrar.add("kthvalue.values", &kthvalue_values);
  registrar.add("bucketize.Tensor", &bucketize);
  registrar.add("searchsorted.Tensor", &searchsorted);
  registrar.add("histc", &histc);
  registrar.add("equal", &equal);
  registrar.add("segment_reduce", &segment_reduce);
  registrar.add("_segment_reduce_backward", &segment_reduce_backward);
  registrar.add("_logcumsumexp", &logcumsumexp);
  registrar.add("_cummax_helper", &cumulative_extreme);
  registrar.add("_cummin_helper", &cumulative_extreme);
}

} // namespace recals
