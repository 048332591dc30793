#pragma once

/// Why an op cannot be run on meta, in words for people: torch's own speak of fake tensors and compilers.

#include <string>

namespace recals {

/// `what`: what the op threw. `reads_data`: it is known to ask for the values in a tensor; else the text is searched for
/// signs of that. Begins with "depends", "has no" or "failed", so that "aten::nonzero at model.py:12 " goes before it.
std::string failure_in_words(std::string what, bool reads_data);

} // namespace recals
