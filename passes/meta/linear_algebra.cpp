#include <ATen/ExpandUtils.h>

#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

at::Tensor dot(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(
      self.dim() == 1 && self.sizes() == other.sizes(),
      "dot: expected two vectors of one length, got ",
      self.sizes(),
      " and ",
      other.sizes());
  return make(self, {});
}

at::Tensor addbmm(
    const at::Tensor& self,
    const at::Tensor& batch1,
    const at::Tensor& batch2,
    const at::Scalar& /*beta*/,
    const at::Scalar& /*alpha*/) {
  return make(self, {batch1.size(1), batch2.size(2)});
}

at::Tensor trace(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 2, "trace: expected a matrix, got ", self.sizes());
  const bool integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return make(self, {}, integral ? at::kLong : self.scalar_type());
}

/// Matrices in column order, as LAPACK makes them.
at::Tensor make_columns(const at::Tensor& like, at::DimVector sizes) {
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  return make(like, sizes).transpose(-2, -1);
}

at::Tensor solve_triangular(
    const at::Tensor& a,
    const at::Tensor& b,
    bool /*upper*/,
    bool /*left*/,
    bool /*unitriangular*/) {
  auto sizes = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  sizes.append({b.size(-2), b.size(-1)});
  return make_columns(b, sizes);
}

/// LAPACK solves in place, in columns as long as the longer side of the matrices.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> least_squares(
    const at::Tensor& a,
    const at::Tensor& b,
    std::optional<double> /*rcond*/,
    std::optional<std::string_view> driver) {
  TORCH_CHECK(a.dim() >= 2 && b.dim() >= 1, "linalg.lstsq: expected matrices, got ", a.sizes(), " and ", b.sizes());
  const auto name = driver.value_or("gelsy");
  const bool vector = b.dim() == 1 || (b.dim() == a.dim() - 1 && b.sizes() == a.sizes().slice(0, a.dim() - 1));
  const auto right = vector ? b.unsqueeze(-1) : b;
  const int64_t rows = a.size(-2);
  const int64_t columns = a.size(-1);
  const auto batch = at::infer_size_dimvector(a.sizes().slice(0, a.dim() - 2), right.sizes().slice(0, right.dim() - 2));
  auto with = [&](std::initializer_list<int64_t> last) {
    auto sizes = batch;
    sizes.append(last);
    return sizes;
  };
  const auto solution = make_columns(a, with({std::max(rows, columns), right.size(-1)})).narrow(-2, 0, columns);
  const auto real = c10::toRealValueType(a.scalar_type());
  const auto nothing = at::DimVector{0};
  const bool residuals = rows > columns && name != "gelsy";
  const bool by_singular_values = name == "gelsd" || name == "gelss";
  return {
      vector ? solution.squeeze(-1) : solution,
      make(a, residuals ? with({right.size(-1)}) : nothing, real),
      make(a, name == "gels" ? nothing : batch, at::kLong),
      make(a, by_singular_values ? with({std::min(rows, columns)}) : nothing, real)};
}

at::Tensor matrix_exp(const at::Tensor& self) {
  return make_contiguous(self);
}

at::Tensor householder_product(const at::Tensor& self, const at::Tensor& /*tau*/) {
  return make_columns(self, at::DimVector(self.sizes()));
}

at::Tensor cdist(const at::Tensor& x1, const at::Tensor& x2, double /*p*/, std::optional<int64_t> /*compute_mode*/) {
  auto sizes = at::infer_size_dimvector(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.push_back(x1.size(-2));
  sizes.push_back(x2.size(-2));
  return make(x1, sizes);
}

at::Tensor cdist_backward(
    const at::Tensor& /*grad*/,
    const at::Tensor& x1,
    const at::Tensor& x2,
    double /*p*/,
    const at::Tensor& /*cdist*/) {
  auto sizes = at::infer_size_dimvector(x1.sizes().slice(0, x1.dim() - 2), x2.sizes().slice(0, x2.dim() - 2));
  sizes.push_back(x1.size(-2));
  sizes.push_back(x1.size(-1));
  return make(x1, sizes);
}

} // namespace

void add_linear_algebra_kernels(MetaRegistrar& registrar) {
  registrar.add("dot", &dot);
  registrar.add("vdot", &dot);
  registrar.add("addbmm", &addbmm);
  registrar.add("trace", &trace);
  registrar.add("linalg_solve_triangular", &solve_triangular);
  registrar.add("linalg_lstsq", &least_squares);
  registrar.add("linalg_matrix_exp", &matrix_exp);
  registrar.add("linalg_householder_product", &householder_product);
  registrar.add("_cdist_forward", &cdist);
  registrar.add("_cdist_backward", &cdist_backward);
}

} // namespace recals
