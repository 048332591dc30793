#include "passes/meta/failures.h"

#include <algorithm>
#include <iterator>

#include <ATen/core/dispatch/Dispatcher.h>

namespace recals {

namespace {

/// What kernels say that look at the numbers of a tensor without any: shapes that follow from them, lengths.
constexpr const char* kReadsData[] = {
    "Cannot copy out of meta tensor",
    "cannot be called on meta tensors",
    "register_meta function",
    "1D CPU int64 tensor",
    "to be on cpu, but it's on meta",
};

/// What stands in `text` between `before` and `after`; empty if they do not.
std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const auto end = text.find(after);
  const auto begin = end == std::string::npos ? end
      : before.empty()                        ? text.find_last_of(" \n\"'", end) + 1
                                              : text.find(before);
  return begin == std::string::npos || begin > end ? ""
                                                   : text.substr(begin + before.size(), end - begin - before.size());
}

/// The op that torch says has no kernel for meta tensors; empty if it says something else. Ops in C++, and in Python.
std::string op_without_kernel(const std::string& what) {
  const auto op = between(what, "", ": attempted to run this operator with Meta tensors");
  return op.empty() ? between(what, "no fake impl registered for <CustomOpDef(", ")>") : op;
}

/// Torch's own word on it.
bool is_tagged(const std::string& op) {
  const auto dot = op.find('.');
  const auto found =
      c10::Dispatcher::singleton().findSchema({op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
  return found && (found->hasTag(at::Tag::dynamic_output_shape) || found->hasTag(at::Tag::data_dependent_output));
}

} // namespace

std::string failure_in_words(std::string what, bool reads_data) {
  what = what.substr(0, what.find("\n\nAt:")); // the call stack of meta kernels written in Python
  what = what.substr(0, what.find("\nException raised from")); // and that of those in C++
  const auto op = op_without_kernel(what);
  reads_data = reads_data || (!op.empty() && is_tagged(op)) ||
      std::any_of(std::begin(kReadsData), std::end(kReadsData), [&](const char* sign) {
                 return what.find(sign) != std::string::npos;
               });
  if (reads_data) {
    const bool of_meta = what.find("meta") != std::string::npos || what.find("Meta") != std::string::npos;
    const auto which = !op.empty() ? " (the shape of what " + op + " returns)" : of_meta ? "" : " (" + what + ")";
    return "depends on the values in a tensor, which are not known before the step runs" + which +
        ". Compute it outside and pass it as an argument, write it with tensors (torch.where), or optimise the "
        "submodules around it";
  }
  if (!op.empty()) {
    return "has no form for tensors without data (" + op +
        "), so what it holds cannot be told before the step runs. Optimise the submodules around it, or, if it is an "
        "op "
        "of your own, give it one (torch.library.register_fake)";
  }
  return "failed: " + what;
}

} // namespace recals
