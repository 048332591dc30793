#pragma once

/// Values as text, in the form in which recals prints them (runtime/describe.h):
///
///   tensor   f32[8, 3, 224, 224]   then, as they apply:   strides[150528, 1, 672, 3]   @cuda:0   +grad
///            f32 f64 f16 bf16 i64 i32 i16 i8 u8 b8 c64 c128; f32[] is a tensor without dimensions
///   number   3   -1   0.5   1e-5
///   other    True   False   None   "text" (with \" and \\)
///   nested   (a, b)   [a, b]   {"key": a, 2: b}

#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

namespace recals::opt {

/// The value of `text` for an argument of `type`. Tensors hold nothing in particular. Throws UsageError with the place
/// if the text cannot be read, BadInput if it is no value of the type; `what` names it in both.
c10::IValue value_of(const std::string& text, const c10::TypePtr& type, const std::string& what);

/// The arguments of a method after self from "NAME=SPEC" or "SPEC" (in order), defaults filled in. Throws like value_of,
/// and BadInput if the method has no such argument or lacks one.
std::vector<c10::IValue> arguments_of(const c10::FunctionSchema& schema, const std::vector<std::string>& texts);

/// Splits "NAME=SPEC". Throws UsageError, naming `option`, if there is no name.
std::pair<std::string, std::string> split_name(const std::string& text, const std::string& option);

} // namespace recals::opt
