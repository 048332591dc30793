#include "runtime/describe.h"

#include <sstream>

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

void describe_to(std::ostream& out, const c10::IValue& value, const std::optional<c10::Device>& device) {
  auto sequence = [&](const auto& elements, const char* open, const char* close) {
    out << open;
    bool first = true;
    for (const auto& element : elements) {
      out << (first ? "" : ", ");
      describe_to(out, element, device);
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
    out << '@' << device.value_or(tensor.device()).str() << (tensor.requires_grad() ? "+grad" : "");
  } else if (value.isTuple()) {
    sequence(value.toTupleRef().elements(), "(", ")");
  } else if (value.isList()) {
    sequence(value.toListRef(), "[", "]");
  } else if (value.isGenericDict()) {
    out << '{';
    bool first = true;
    for (const auto& entry : value.toGenericDict()) {
      out << (first ? "" : ", ");
      describe_to(out, entry.key(), device);
      out << ": ";
      describe_to(out, entry.value(), device);
      first = false;
    }
    out << '}';
  } else if (value.isObject()) {
    out << value.type()->str();
  } else {
    out << value;
  }
}

} // namespace

std::string describe(const c10::IValue& value, std::optional<c10::Device> device) {
  std::ostringstream out;
  describe_to(out, value, device);
  return out.str();
}

} // namespace recals
