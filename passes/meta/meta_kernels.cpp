#include "passes/meta/meta_kernels.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "passes/meta/registrar.h"

namespace recals {

std::unordered_set<std::string>& MetaRegistrar::known() {
  static auto& ops = *new std::unordered_set<std::string>;
  return ops;
}

bool MetaRegistrar::is_missing(const std::string& op) {
  const auto dot = op.find('.');
  const auto overload = dot == std::string::npos ? std::string() : op.substr(dot + 1);
  const auto found = c10::Dispatcher::singleton().findSchema({"aten::" + op.substr(0, dot), overload});
  return found && !found->hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

void register_missing_meta_kernels() {
  // Never destroyed: destruction would take the kernels away, and at exit other threads may still use them.
  static auto* library = [] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
    MetaRegistrar registrar(*made);
    add_attention_kernels(registrar);
    add_convolution_kernels(registrar);
    add_dropout_kernels(registrar);
    add_embedding_kernels(registrar);
    add_fft_kernels(registrar);
    add_indexing_kernels(registrar);
    add_linear_algebra_kernels(registrar);
    add_loss_kernels(registrar);
    add_norm_kernels(registrar);
    add_padding_kernels(registrar);
    add_pointwise_kernels(registrar);
    add_pooling_kernels(registrar);
    add_reduction_kernels(registrar);
    add_sampling_kernels(registrar);
    return made;
  }();
  (void)library;
}

} // namespace recals
