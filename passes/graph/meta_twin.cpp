#include "passes/graph/meta_twin.h"

#include <ATen/ATen.h>

namespace recals {

namespace {

class Cloner {
 public:
  Cloner(MetaTwin& twin, DeviceTable& devices, std::optional<c10::Device> target, bool shares)
      : twin_(twin), devices_(devices), target_(target), shares_(shares) {}

  c10::IValue clone(const c10::IValue& value, const std::string& path) {
    if (value.isTensor()) {
      return tensor(value.toTensor());
    }
    if (value.isObject()) {
      return object(value.toObject(), path);
    }
    if (value.isTuple()) {
      std::vector<c10::IValue> elements;
      for (const auto& element : value.toTupleRef().elements()) {
        elements.push_back(clone(element, path));
      }
      auto type = value.type()->expect<c10::TupleType>();
      return type->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                            : c10::ivalue::Tuple::create(std::move(elements));
    }
    if (value.isList()) {
      auto list = value.toList();
      auto copy = c10::impl::GenericList(list.elementType());
      for (const auto& element : value.toListRef()) {
        copy.push_back(clone(element, path));
      }
      return copy;
    }
    if (value.isGenericDict()) {
      auto dict = value.toGenericDict();
      auto copy = c10::impl::GenericDict(dict.keyType(), dict.valueType());
      for (const auto& entry : dict) {
        copy.insert(entry.key(), clone(entry.value(), path));
      }
      return copy;
    }
    TORCH_CHECK(
        !value.isCapsule() && !value.isPyObject(),
        "recals: ",
        path.empty() ? "the module" : path,
        " holds a ",
        value.tagKind(),
        ", which cannot be analysed");
    return value;
  }

 private:
  c10::IValue tensor(const at::Tensor& original) {
    if (!original.defined()) {
      return original;
    }
    at::Tensor own;
    auto& copy = shares_ ? tensors_[original.unsafeGetTensorImpl()] : own;
    if (!copy.defined()) {
      TORCH_CHECK(
          original.layout() == c10::kStrided, "recals: tensors of layout ", original.layout(), " are not supported");
      at::NoGradGuard no_grad;
      copy = at::empty_strided(
          original.sizes(), original.strides(), original.options().device(stand_in(original.device())));
      if (original.requires_grad()) {
        copy.set_requires_grad(true);
        copy.mutable_grad() = at::zeros_like(copy);
      }
      twin_.originals.emplace(copy.unsafeGetTensorImpl(), original);
    }
    return copy;
  }

  c10::IValue object(const c10::intrusive_ptr<c10::ivalue::Object>& original, const std::string& path) {
    auto known = objects_.find(original.get());
    if (known != objects_.end()) {
      return known->second;
    }
    const auto type = original->type();
    auto copy =
        c10::ivalue::Object::create(c10::StrongTypePtr(original->compilation_unit(), type), type->numAttributes());
    objects_.emplace(original.get(), copy);
    twin_.paths.emplace(copy.get(), path);
    for (size_t i = 0; i < type->numAttributes(); ++i) {
      const auto& name = type->getAttributeName(i);
      copy->setSlot(i, clone(original->getSlot(i), path.empty() ? name : path + "." + name));
    }
    return copy;
  }

  c10::Device stand_in(c10::Device own) {
    if (own.is_meta()) {
      own = c10::kCPU; // without data it is analysed as it would run there
    } else if (target_) {
      TORCH_CHECK(
          !moved_ || *moved_ == own,
          "recals: the module and its inputs are on several devices (",
          *moved_,
          " and ",
          own,
          "), so that one target device cannot take their place");
      moved_ = own;
    }
    return devices_.stand_in(target_.value_or(own));
  }

  MetaTwin& twin_;
  DeviceTable& devices_;
  const std::optional<c10::Device> target_;
  std::optional<c10::Device> moved_; ///< whose place the target takes
  const bool shares_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> tensors_;
  std::unordered_map<const c10::ivalue::Object*, c10::intrusive_ptr<c10::ivalue::Object>> objects_;
};

} // namespace

MetaTwin meta_twin(const c10::IValue& value, DeviceTable& devices, std::optional<c10::Device> target) {
  MetaTwin twin;
  twin.value = Cloner(twin, devices, target, /*shares=*/true).clone(value, "");
  return twin;
}

MetaTwin meta_twin_of_arguments(
    const std::vector<c10::IValue>& arguments,
    DeviceTable& devices,
    std::optional<c10::Device> target) {
  MetaTwin twin;
  twin.value = Cloner(twin, devices, target, /*shares=*/false).clone(c10::ivalue::Tuple::create(arguments), "");
  return twin;
}

} // namespace recals
