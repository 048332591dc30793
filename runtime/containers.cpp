#include "runtime/containers.h"

#include <algorithm>

#include "runtime/describe.h"

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

std::vector<std::pair<c10::IValue, c10::IValue>> sorted_entries(const c10::Dict<c10::IValue, c10::IValue>& dict) {
  std::vector<std::pair<std::string, std::pair<c10::IValue, c10::IValue>>> by_text;
  for (const auto& entry : dict) {
    by_text.emplace_back(describe(entry.key()), std::pair(entry.key(), entry.value()));
  }
  std::stable_sort(by_text.begin(), by_text.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (auto& [text, entry] : by_text) {
    entries.push_back(std::move(entry));
  }
  return entries;
}

c10::IValue with_own_containers(const c10::IValue& value) {
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(with_own_containers(element));
    }
    return recals::make_tuple(value.type(), std::move(elements));
  }
  if (value.isList()) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(with_own_containers(element));
    }
    return list;
  }
  if (value.isGenericDict()) {
    const auto original = value.toGenericDict();
    c10::impl::GenericDict dict(original.keyType(), original.valueType());
    for (const auto& entry : original) {
      dict.insert(entry.key(), with_own_containers(entry.value()));
    }
    return dict;
  }
  return value;
}

bool is_instance(const IValue& value, c10::ArrayRef<c10::TypePtr> types) {
  const auto type = value.type();
  return std::any_of(
      types.begin(), types.end(), [&](const c10::TypePtr& candidate) { return type->isSubtypeOf(*candidate); });
}

} // namespace recals
