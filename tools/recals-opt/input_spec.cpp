#include "tools/recals-opt/input_spec.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <ATen/ATen.h>

#include "runtime/describe.h"
#include "tools/recals-opt/absent_devices.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

using c10::IValue;
using c10::TypeKind;
using c10::TypePtr;

namespace {

struct TensorSpec {
  c10::ScalarType dtype = c10::kFloat;
  std::vector<int64_t> sizes;
  std::optional<std::vector<int64_t>> strides;
  std::string device = "cpu";
  bool requires_grad = false;
};

/// What was written, before it is known what type it should have.
struct Spec {
  enum class Kind { Tensor, Int, Float, Bool, Text, None, Tuple, List, Dict };
  Kind kind = Kind::None;
  TensorSpec tensor;
  int64_t integer = 0;
  double real = 0;
  std::string text;
  std::vector<Spec> elements; ///< of a dict: key, value, key, value
};

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

const std::map<std::string, c10::ScalarType>& dtypes() {
  static const auto& all = *[] {
    auto* names = new std::map<std::string, c10::ScalarType>;
    for (auto dtype :
         {c10::kFloat,
          c10::kDouble,
          c10::kHalf,
          c10::kBFloat16,
          c10::kLong,
          c10::kInt,
          c10::kShort,
          c10::kChar,
          c10::kByte,
          c10::kBool,
          c10::kComplexFloat,
          c10::kComplexDouble}) {
      names->emplace(dtype_name(dtype), dtype);
    }
    return names;
  }();
  return all;
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& what) : text_(text), what_(what) {}

  Spec run() {
    auto spec = value();
    blanks();
    if (at_ != text_.size()) {
      fail("nothing more is expected");
    }
    return spec;
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw UsageError(what_ + " '" + text_ + "': at character " + std::to_string(at_ + 1) + ": " + expected);
  }

  void blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') {
      ++at_;
    }
  }

  char peek() {
    blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool take(char c) {
    if (peek() != c) {
      return false;
    }
    ++at_;
    return true;
  }

  Spec value() {
    // Arguments come from the command line or a file: nesting must not exhaust the stack.
    constexpr int kDeepest = 64;
    if (++depth_ > kDeepest) {
      fail("nested more than " + std::to_string(kDeepest) + " deep");
    }
    auto spec = value_here();
    --depth_;
    return spec;
  }

  Spec value_here() {
    const char c = peek();
    if (c == '(') {
      return sequence(Spec::Kind::Tuple, ')');
    }
    if (c == '[') {
      return sequence(Spec::Kind::List, ']');
    }
    if (c == '{') {
      return dict();
    }
    if (c == '"') {
      return quoted();
    }
    if (is_digit(c) || c == '-' || c == '.') {
      return number();
    }
    if (is_letter(c)) {
      return word();
    }
    fail("a value is expected: a tensor such as f32[2, 3], a number, True, None, \"text\", (...), [...] or {...}");
  }

  Spec sequence(Spec::Kind kind, char close) {
    Spec spec;
    spec.kind = kind;
    ++at_;
    while (!take(close)) {
      spec.elements.push_back(value());
      if (!take(',') && peek() != close) {
        fail(std::string("',' or '") + close + "' is expected");
      }
    }
    return spec;
  }

  Spec dict() {
    Spec spec;
    spec.kind = Spec::Kind::Dict;
    ++at_;
    while (!take('}')) {
      spec.elements.push_back(value());
      if (!take(':')) {
        fail("':' is expected after a key");
      }
      spec.elements.push_back(value());
      if (!take(',') && peek() != '}') {
        fail("',' or '}' is expected");
      }
    }
    return spec;
  }

  Spec quoted() {
    Spec spec;
    spec.kind = Spec::Kind::Text;
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
      }
      spec.text += text_[at_++];
    }
    if (at_ == text_.size()) {
      fail("the text does not end: '\"' is expected");
    }
    ++at_;
    return spec;
  }

  Spec number() {
    const auto begin = at_;
    bool real = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      const bool exponent_sign =
          (c == '-' || c == '+') && at_ > begin && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E');
      if (c == '.' || c == 'e' || c == 'E') {
        real = true;
      } else if (!is_digit(c) && !exponent_sign && !(c == '-' && at_ == begin)) {
        break;
      }
    }
    Spec spec;
    spec.kind = real ? Spec::Kind::Float : Spec::Kind::Int;
    const char* first = text_.data() + begin;
    const char* last = text_.data() + at_;
    const auto result = real ? std::from_chars(first, last, spec.real) : std::from_chars(first, last, spec.integer);
    if (result.ec != std::errc() || result.ptr != last) {
      at_ = begin;
      fail("a number is expected");
    }
    return spec;
  }

  std::string name() {
    const auto begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) {
      ++at_;
    }
    return text_.substr(begin, at_ - begin);
  }

  Spec word() {
    const auto begin = at_;
    const auto text = name();
    Spec spec;
    if (text == "None") {
      return spec;
    }
    if (text == "inf" || text == "nan") {
      spec.kind = Spec::Kind::Float;
      spec.real = text == "inf" ? std::numeric_limits<double>::infinity() : std::nan("");
      return spec;
    }
    if (text == "True" || text == "False" || text == "true" || text == "false") {
      spec.kind = Spec::Kind::Bool;
      spec.integer = text[0] == 'T' || text[0] == 't' ? 1 : 0;
      return spec;
    }
    const auto dtype = dtypes().find(text);
    if (dtype == dtypes().end()) {
      at_ = begin;
      std::string names;
      for (const auto& [known, unused] : dtypes()) {
        (void)unused;
        names += " " + known;
      }
      fail("'" + text + "' is no dtype; there are" + names);
    }
    spec.kind = Spec::Kind::Tensor;
    spec.tensor.dtype = dtype->second;
    tensor(spec.tensor);
    return spec;
  }

  void tensor(TensorSpec& tensor) {
    tensor.sizes = extents("sizes");
    blanks();
    if (text_.compare(at_, 7, "strides") == 0) {
      at_ += 7;
      tensor.strides = extents("strides");
      if (tensor.strides->size() != tensor.sizes.size()) {
        fail("as many strides as sizes are expected");
      }
    }
    if (take('@')) {
      const auto begin = at_;
      name();
      if (at_ < text_.size() && text_[at_] == ':' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1])) {
        ++at_;
        name();
      }
      tensor.device = text_.substr(begin, at_ - begin);
    }
    if (take('+')) {
      if (name() != "grad") {
        fail("'+grad' is expected");
      }
      tensor.requires_grad = true;
    }
  }

  std::vector<int64_t> extents(const char* of) {
    if (!take('[')) {
      fail(std::string("'[' and ") + of + " are expected");
    }
    std::vector<int64_t> list;
    while (!take(']')) {
      blanks();
      const auto begin = at_;
      while (at_ < text_.size() && is_digit(text_[at_])) {
        ++at_;
      }
      int64_t extent = 0;
      const auto result = std::from_chars(text_.data() + begin, text_.data() + at_, extent);
      if (begin == at_ || result.ec != std::errc()) {
        at_ = begin;
        fail(std::string("a number for ") + of + " is expected");
      }
      list.push_back(extent);
      if (!take(',') && peek() != ']') {
        fail("',' or ']' is expected");
      }
    }
    return list;
  }

  const std::string& text_;
  const std::string& what_;
  size_t at_ = 0;
  int depth_ = 0;
};

const char* kind_name(Spec::Kind kind) {
  switch (kind) {
    case Spec::Kind::Tensor:
      return "a tensor";
    case Spec::Kind::Int:
      return "an integer";
    case Spec::Kind::Float:
      return "a number with a fraction";
    case Spec::Kind::Bool:
      return "a bool";
    case Spec::Kind::Text:
      return "a text";
    case Spec::Kind::None:
      return "None";
    case Spec::Kind::Tuple:
      return "a tuple";
    case Spec::Kind::List:
      return "a list";
    case Spec::Kind::Dict:
      return "a dict";
  }
  return "";
}

/// Specs as values of the types that the method declares.
class Builder {
 public:
  explicit Builder(const std::string& what) : what_(what) {}

  IValue build(const Spec& spec, const TypePtr& type) const {
    switch (type->kind()) {
      case TypeKind::OptionalType:
        return spec.kind == Spec::Kind::None ? IValue()
                                             : build(spec, type->expectRef<c10::OptionalType>().getElementType());
      case TypeKind::UnionType:
        return of_union(spec, type);
      case TypeKind::AnyType:
        return build(spec, own_type(spec));
      case TypeKind::TensorType:
        expect(spec.kind == Spec::Kind::Tensor, spec, type);
        return tensor(spec.tensor);
      case TypeKind::IntType:
        expect(spec.kind == Spec::Kind::Int, spec, type);
        return spec.integer;
      case TypeKind::FloatType:
        expect(spec.kind == Spec::Kind::Int || spec.kind == Spec::Kind::Float, spec, type);
        return spec.kind == Spec::Kind::Int ? static_cast<double>(spec.integer) : spec.real;
      case TypeKind::NumberType:
        expect(spec.kind == Spec::Kind::Int || spec.kind == Spec::Kind::Float, spec, type);
        return spec.kind == Spec::Kind::Int ? IValue(spec.integer) : IValue(spec.real);
      case TypeKind::BoolType:
        expect(spec.kind == Spec::Kind::Bool, spec, type);
        return spec.integer != 0;
      case TypeKind::StringType:
        expect(spec.kind == Spec::Kind::Text, spec, type);
        return spec.text;
      case TypeKind::DeviceObjType:
        expect(spec.kind == Spec::Kind::Text, spec, type);
        return device(spec.text);
      case TypeKind::NoneType:
        expect(spec.kind == Spec::Kind::None, spec, type);
        return IValue();
      case TypeKind::ListType:
        return list(spec, type);
      case TypeKind::TupleType:
        return tuple(spec, type);
      case TypeKind::DictType:
        return dict(spec, type);
      default:
        throw BadInput(what_ + " is a " + type->annotation_str() + ", which cannot be written on the command line");
    }
  }

 private:
  void expect(bool good, const Spec& spec, const TypePtr& type) const {
    if (!good) {
      throw BadInput(what_ + " takes a value of type " + type->annotation_str() + ", not " + kind_name(spec.kind));
    }
  }

  static TypePtr own_type(const Spec& spec) {
    switch (spec.kind) {
      case Spec::Kind::Tensor:
        return c10::TensorType::get();
      case Spec::Kind::Int:
        return c10::IntType::get();
      case Spec::Kind::Float:
        return c10::FloatType::get();
      case Spec::Kind::Bool:
        return c10::BoolType::get();
      case Spec::Kind::Text:
        return c10::StringType::get();
      case Spec::Kind::None:
        return c10::NoneType::get();
      case Spec::Kind::Tuple: {
        std::vector<TypePtr> types;
        for (const auto& element : spec.elements) {
          types.push_back(own_type(element));
        }
        return c10::TupleType::create(std::move(types));
      }
      case Spec::Kind::List:
        return c10::ListType::create(spec.elements.empty() ? c10::TensorType::get() : own_type(spec.elements[0]));
      case Spec::Kind::Dict:
        return c10::DictType::create(
            spec.elements.empty() ? TypePtr(c10::StringType::get()) : own_type(spec.elements[0]),
            spec.elements.empty() ? TypePtr(c10::TensorType::get()) : own_type(spec.elements[1]));
    }
    return c10::NoneType::get();
  }

  IValue of_union(const Spec& spec, const TypePtr& type) const {
    for (const auto& member : type->expectRef<c10::UnionType>().containedTypes()) {
      try {
        return build(spec, member);
      } catch (const BadInput&) {
        continue; // another member may fit
      }
    }
    expect(false, spec, type);
    return {};
  }

  c10::Device device(const std::string& text) const {
    try {
      return c10::Device(text);
    } catch (const c10::Error&) {
      throw BadInput(what_ + ": '" + text + "' is no device; write cpu or cuda:0");
    }
  }

  IValue tensor(const TensorSpec& spec) const {
    const auto device = this->device(spec.device);
    const auto options = at::TensorOptions().dtype(spec.dtype).device(device);
    try {
      auto made = !is_here(device) ? tensor_without_data(spec.sizes, spec.strides, spec.dtype, device)
          : spec.strides           ? at::empty_strided(spec.sizes, *spec.strides, options)
                                   : at::empty(spec.sizes, options);
      return spec.requires_grad ? made.set_requires_grad(true) : made;
    } catch (const std::exception& error) {
      // Torch's reasons: more bytes than fit an integer, a gradient of integers.
      throw BadInput(what_ + ": such a tensor cannot be made on " + spec.device + ": " + one_line(error.what()));
    }
  }

  IValue list(const Spec& spec, const TypePtr& type) const {
    expect(spec.kind == Spec::Kind::List, spec, type);
    const auto element_type = type->expectRef<c10::ListType>().getElementType();
    c10::impl::GenericList list(element_type);
    for (const auto& element : spec.elements) {
      list.push_back(build(element, element_type));
    }
    return list;
  }

  IValue tuple(const Spec& spec, const TypePtr& type) const {
    auto tuple_type = type->expect<c10::TupleType>();
    expect(spec.kind == Spec::Kind::Tuple && spec.elements.size() == tuple_type->elements().size(), spec, type);
    std::vector<IValue> elements;
    for (size_t i = 0; i < spec.elements.size(); ++i) {
      elements.push_back(build(spec.elements[i], tuple_type->elements()[i]));
    }
    return tuple_type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), tuple_type)
                                : c10::ivalue::Tuple::create(std::move(elements));
  }

  IValue dict(const Spec& spec, const TypePtr& type) const {
    expect(spec.kind == Spec::Kind::Dict, spec, type);
    const auto& dict_type = type->expectRef<c10::DictType>();
    c10::impl::GenericDict dict(dict_type.getKeyType(), dict_type.getValueType());
    for (size_t i = 0; i < spec.elements.size(); i += 2) {
      dict.insert(
          build(spec.elements[i], dict_type.getKeyType()), build(spec.elements[i + 1], dict_type.getValueType()));
    }
    return dict;
  }

  const std::string& what_;
};

/// The length of "NAME" where the text begins with "NAME=", else 0.
size_t name_length(const std::string& text) {
  size_t length = 0;
  while (length < text.size() && (is_letter(text[length]) || (length > 0 && is_digit(text[length])))) {
    ++length;
  }
  return length < text.size() && text[length] == '=' ? length : 0;
}

std::string shown(const c10::FunctionSchema& schema) {
  std::string text = schema.name() + "(";
  for (size_t i = 1; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    text += (i > 1 ? ", " : "") + argument.name() + ": " + argument.type()->annotation_str();
  }
  return text + ")";
}

} // namespace

IValue value_of(const std::string& text, const TypePtr& type, const std::string& what) {
  return Builder(what).build(Parser(text, what).run(), type);
}

std::pair<std::string, std::string> split_name(const std::string& text, const std::string& option) {
  const auto length = name_length(text);
  if (length == 0) {
    throw UsageError(option + " '" + text + "': a name and '=' are expected");
  }
  return {text.substr(0, length), text.substr(length + 1)};
}

std::vector<IValue> arguments_of(const c10::FunctionSchema& schema, const std::vector<std::string>& texts) {
  const auto& declared = schema.arguments();
  std::vector<std::optional<IValue>> values(declared.size());
  size_t next = 1;
  bool named = false;
  for (const auto& text : texts) {
    const auto length = name_length(text);
    size_t place = next++;
    if (length > 0) {
      named = true;
      const auto name = text.substr(0, length);
      for (place = 1; place < declared.size() && declared[place].name() != name;) {
        ++place;
      }
      if (place == declared.size()) {
        throw BadInput("--input '" + text + "': " + shown(schema) + " has no argument '" + name + "'");
      }
    } else if (named) {
      throw UsageError("--input '" + text + "': an input without a name cannot follow one with a name");
    } else if (place >= declared.size()) {
      throw BadInput("--input '" + text + "' is one too many for " + shown(schema));
    }
    if (values[place]) {
      throw UsageError("--input '" + text + "': the argument '" + declared[place].name() + "' is given twice");
    }
    values[place] = value_of(
        length > 0 ? text.substr(length + 1) : text,
        declared[place].type(),
        "--input for '" + declared[place].name() + "'");
  }
  std::vector<IValue> arguments;
  for (size_t i = 1; i < declared.size(); ++i) {
    if (!values[i] && declared[i].default_value()) {
      values[i] = declared[i].default_value();
    }
    if (!values[i]) {
      throw BadInput("there is no --input for the argument '" + declared[i].name() + "' of " + shown(schema));
    }
    arguments.push_back(*values[i]);
  }
  return arguments;
}

} // namespace recals::opt
