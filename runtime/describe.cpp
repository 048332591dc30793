#include "runtime/describe.h"

#include <iomanip>
#include <sstream>
#include <unordered_set>

#include <c10/core/ScalarType.h>

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

void describe_to(std::ostream& out, const c10::IValue& value) {
  auto sequence = [&](const auto& elements, const char* open, const char* close) {
    out << open;
    bool first = true;
    for (const auto& element : elements) {
      out << (first ? "" : ", ");
      describe_to(out, element);
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
    out << '@' << tensor.device().str() << (tensor.requires_grad() ? "+grad" : "");
  } else if (value.isTuple()) {
    sequence(value.toTupleRef().elements(), "(", ")");
  } else if (value.isList()) {
    sequence(value.toListRef(), "[", "]");
  } else if (value.isGenericDict()) {
    out << '{';
    bool first = true;
    for (const auto& entry : value.toGenericDict()) {
      out << (first ? "" : ", ");
      describe_to(out, entry.key());
      out << ": ";
      describe_to(out, entry.value());
      first = false;
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

std::string describe(const c10::IValue& value) {
  std::ostringstream out;
  describe_to(out, value);
  return out.str();
}

} // namespace recals
