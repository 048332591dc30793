#include "passes/meta/outputs.h"
#include "passes/meta/registrar.h"

namespace recals {

namespace {

using OptionalGenerator = std::optional<at::Generator>;

at::Tensor& bernoulli_out(const at::Tensor& self, OptionalGenerator /*generator*/, at::Tensor& out) {
  return resized(out, self.sizes());
}

at::Tensor multinomial(const at::Tensor& self, int64_t samples, bool /*replacement*/, OptionalGenerator /*generator*/) {
  return self.dim() == 1 ? make(self, {samples}, at::kLong) : make(self, {self.size(0), samples}, at::kLong);
}

at::Tensor poisson(const at::Tensor& self, OptionalGenerator /*generator*/) {
  return make_contiguous(self);
}

at::Tensor standard_gamma(const at::Tensor& self, OptionalGenerator /*generator*/) {
  return make_contiguous(self);
}

at::Tensor binomial(const at::Tensor& count, const at::Tensor& /*probability*/, OptionalGenerator /*generator*/) {
  return make_contiguous(count);
}

at::Tensor& randperm_out(int64_t n, OptionalGenerator /*generator*/, at::Tensor& out) {
  return resized(out, {n});
}

} // namespace

void add_sampling_kernels(MetaRegistrar& registrar) {
  registrar.add("bernoulli.out", &bernoulli_out);
  registrar.add("multinomial", &multinomial);
  registrar.add("poisson", &poisson);
  registrar.add("binomial", &binomial);
  registrar.add("_standard_gamma", &standard_gamma);
  registrar.add("_sample_dirichlet", &standard_gamma);
  registrar.add("randperm.generator_out", &randperm_out);
}

} // namespace recals
