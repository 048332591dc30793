#include "runtime/containers.h"

#include <algorithm>

namespace recals {

using c10::IValue;

IValue make_list(const c10::TypePtr& type, const std::vector<IValue>& elements) {
  c10::impl::GenericList list(type->expectRef<c10::ListType>().getElementType());
  list.reserve(elements.size());
  for (const auto& element : elements) {
    list.push_back(element);
  }
  return list;
}

IValue make_tuple(const c10::TypePtr& type, std::vector<IValue> elements) {
  auto tuple = type->expect<c10::TupleType>();
  return tuple->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), tuple)
                         : c10::ivalue::Tuple::create(std::move(elements));
}

IValue make_dict(const c10::TypePtr& type, const std::vector<IValue>& keys_and_values) {
  const auto& dict_type = type->expectRef<c10::DictType>();
  c10::impl::GenericDict dict(dict_type.getKeyType(), dict_type.getValueType());
  for (size_t i = 0; i + 1 < keys_and_values.size(); i += 2) {
    dict.insert_or_assign(keys_and_values[i], keys_and_values[i + 1]);
  }
  return dict;
}

bool is_instance(const IValue& value, c10::ArrayRef<c10::TypePtr> types) {
  const auto type = value.type();
  return std::any_of(
      types.begin(), types.end(), [&](const c10::TypePtr& candidate) { return type->isSubtypeOf(*candidate); });
}

} // namespace recals
