#pragma once

/// Loops that keep one bit of each element.
///
/// A block is 128 elements, and 16 bytes when packed: bit j of word w says what element j * words + w is, where a word is
/// as wide as an element. Neighbours in memory stay neighbours in a vector register, whatever the width.

#include <cstdint>

namespace recals::bits {

constexpr int64_t kBlock = 128; ///< elements
constexpr int64_t kBlockBytes = 16;

constexpr int64_t blocks(int64_t elements) {
  return (elements + kBlock - 1) / kBlock;
}

/// `Word`: the unsigned integer as wide as an element. `in`: `elements` of them; `out`: blocks(elements) blocks.
/// The bit is set where an element is not `zero`. Returns whether every element is `zero` or `one`.
template <typename Word>
bool pack_equal(const Word* in, int64_t elements, Word zero, Word one, char* out);

/// The bit is set where an element, read as a signed integer, is above `after`, not above `last`, and not 0. Floats are
/// ordered so: from the least integer, -0 to -infinity, negative numbers that are none, 0 to infinity, and again none.
template <typename Word>
void pack_between(const Word* in, int64_t elements, Word after, Word last, char* out);

template <typename Word>
void unpack(const char* in, int64_t elements, Word zero, Word one, Word* out);

} // namespace recals::bits
