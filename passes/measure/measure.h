#pragma once

/// Kernel calls, made once on the CPU to see what memory they take.
///
/// Note [Memory of measuring]
/// One call is made at a time, on made-up numbers. What it reads is pages of zeros that nobody has written, which take no
/// memory; what it writes, returns and takes on its way is what the step must hold for that call at once, too, so a budget
/// that has a plan has room for it. A kernel that refuses zeros (a matrix that is to be inverted) is given other numbers,
/// in memory of their own.

#include <vector>

#include "passes/measure/call_memory.h"
#include "passes/measure/call_spec.h"

namespace recals {

/// Makes each call and puts what it took into the table (call_memory::add). Random streams stay where they are.
/// `most_bytes`: calls that would hold more than that are left out. Returns how many are in the table now.
size_t measure_calls(const std::vector<CallSpec>& calls, int64_t most_bytes);

} // namespace recals
