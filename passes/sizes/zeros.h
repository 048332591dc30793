#pragma once

/// Backwards of products. They look for zeros in what was multiplied, and if there are some take a way that needs more
/// memory; on meta there is nothing to look at.

#include "passes/sizes/kernel_rules.h"

namespace recals {

/// Is its backward told as a whole, by the rule below? On meta, older versions of torch take a way that no device takes.
bool looks_for_zeros(const std::string& op);

/// Bytes that a call holds for a while on any device, besides its outputs, because there may be zeros. An upper bound.
int64_t bytes_for_zeros(const KernelCall& call);

} // namespace recals
