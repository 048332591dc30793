#include "runtime/describe.h"

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>
#include <tuple>
#include <unordered_set>

#include <c10/core/ScalarType.h>

#include "runtime/containers.h"

namespace recals {

std::string dtype_name(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat:
      return "f32";
    case c10::kDouble:
      return "f64";
    case c10::kHalf:
      return "f16";
    case c10::kBFloat16:
      return "bf16";
    case c10::kLong:
      return "i64";
    case c10::kInt:
      return "i32";
    case c10::kShort:
      return "i16";
    case c10::kChar:
      return "i8";
    case c10::kByte:
      return "u8";
    case c10::kBool:
      return "b8";
    case c10::kComplexFloat:
      return "c64";
    case c10::kComplexDouble:
      return "c128";
    default:
      return c10::toString(dtype);
  }
}

namespace {

void describe_to(std::ostream& out, const c10::IValue& value, std::optional<c10::Device> as, DictOrder order) {
  auto sequence = [&](const auto& elements, const char* open, const char* close) {
    out << open;
    bool first = true;
    for (const auto& element : elements) {
      out << (first ? "" : ", ");
      describe_to(out, element, as, order);
      first = false;
    }
    out << close;
  };
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (!tensor.defined()) {
      out << "None";
      return;
    }
    out << dtype_name(tensor.scalar_type()) << tensor.sizes();
    if (tensor.layout() == c10::kStrided && !tensor.is_contiguous()) {
      out << " strides" << tensor.strides();
    }
    out << '@' << as.value_or(tensor.device()).str() << (tensor.requires_grad() ? "+grad" : "");
  } else if (value.isTuple()) {
    sequence(value.toTupleRef().elements(), "(", ")");
  } else if (value.isList()) {
    sequence(value.toListRef(), "[", "]");
  } else if (value.isGenericDict()) {
    out << '{';
    bool first = true;
    auto entry = [&](const c10::IValue& key, const c10::IValue& element) {
      out << (first ? "" : ", ");
      describe_to(out, key, as, order);
      out << ": ";
      describe_to(out, element, as, order);
      first = false;
    };
    if (order == DictOrder::Sorted) {
      for (const auto& [key, element] : sorted_entries(value.toGenericDict())) {
        entry(key, element);
      }
    } else {
      for (const auto& stored : value.toGenericDict()) {
        entry(stored.key(), stored.value());
      }
    }
    out << '}';
  } else if (value.isObject()) {
    out << value.type()->str();
  } else if (value.isString()) {
    // Quoted, so that nothing in it is taken for the rest of the text.
    out << std::quoted(value.toStringRef());
  } else {
    out << value;
  }
}

} // namespace

namespace {

struct Tensors {
  std::unordered_set<const void*> seen;
  int64_t count = 0;
  int64_t bytes = 0;
  int64_t require_grad = 0;

  void add(const c10::IValue& value) {
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined() && tensor.has_storage() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
        ++count;
        bytes += static_cast<int64_t>(tensor.nbytes());
        require_grad += tensor.requires_grad() ? static_cast<int64_t>(tensor.nbytes()) : 0;
      }
    } else if (value.isObject() && seen.insert(&value.toObjectRef()).second) {
      for (const auto& slot : value.toObjectRef().slots()) {
        add(slot);
      }
    }
  }
};

} // namespace

std::string describe_tensors(const c10::IValue& module) {
  Tensors tensors;
  tensors.add(module);
  return "tensors=" + std::to_string(tensors.count) + ", " + std::to_string(tensors.bytes) + " bytes, " +
      std::to_string(tensors.require_grad) + " require grad";
}

namespace {

void add_device_types(const c10::IValue& value, std::set<c10::DeviceType>& types) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      types.insert(value.toTensor().device().type());
    }
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) {
      add_device_types(element, types);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      add_device_types(element, types);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      add_device_types(entry.value(), types);
    }
  } else if (value.isObject()) {
    for (const auto& slot : value.toObjectRef().slots()) {
      add_device_types(slot, types);
    }
  }
}

/// A step on a CPU and on an accelerator has every word that any step has.
const std::set<c10::DeviceType>& all_types() {
  static const std::set<c10::DeviceType> types{c10::kCPU, c10::kCUDA};
  return types;
}

} // namespace

std::string describe_step(
    const c10::IValue& module,
    const c10::IValue& inputs,
    std::optional<c10::Device> as,
    DictOrder order) {
  auto text = describe(inputs, as, order);
  const auto autocast = AutocastState::current();
  const auto backend = BackendState::current();
  const bool casts =
      std::any_of(autocast.devices.begin(), autocast.devices.end(), [](const auto& device) { return device.enabled; });
  if (!casts && backend.text(all_types()).empty()) {
    return text;
  }
  std::set<c10::DeviceType> types;
  if (as) {
    types.insert(as->type());
  } else {
    add_device_types(module, types);
    add_device_types(inputs, types);
  }
  return text + autocast.text(types) + backend.text(types);
}

StepText parse_step(const std::string& text) {
  StepText step;
  std::tie(step.inputs, step.backend) = BackendState::parse(text);
  std::tie(step.inputs, step.autocast) = AutocastState::parse(step.inputs);
  return step;
}

std::string describe(const c10::IValue& value, std::optional<c10::Device> as, DictOrder order) {
  std::ostringstream out;
  describe_to(out, value, as, order);
  return out.str();
}

} // namespace recals
