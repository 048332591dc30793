#pragma once

/// Lists, tuples and dicts of TorchScript values (LibTorch's own helpers are not exported by the wheel).

#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "recals/export.h"

namespace recals {

/// `type`: the list's type. A List[int] made here is what ops take as int[].
RECALS_API c10::IValue make_list(const c10::TypePtr& type, const std::vector<c10::IValue>& elements);

/// `type`: named tuples keep their name.
RECALS_API c10::IValue make_tuple(const c10::TypePtr& type, std::vector<c10::IValue> elements);

/// `keys_and_values`: alternating.
RECALS_API c10::IValue make_dict(const c10::TypePtr& type, const std::vector<c10::IValue>& keys_and_values);

/// The entries of a dict by the texts of their keys, whatever order they were put in: how inputs and results of a step are
/// taken apart.
RECALS_API std::vector<std::pair<c10::IValue, c10::IValue>> sorted_entries(
    const c10::Dict<c10::IValue, c10::IValue>& dict);

/// The same tensors in lists, tuples and dicts of their own, which the original does not notice to be changed.
RECALS_API c10::IValue with_own_containers(const c10::IValue& value);

/// isinstance of TorchScript: is the value's type a subtype of one of `types`.
RECALS_API bool is_instance(const c10::IValue& value, c10::ArrayRef<c10::TypePtr> types);

} // namespace recals
