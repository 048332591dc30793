#include "runtime/bit_codec.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace recals::bits {

namespace {

template <typename Word>
struct LanesOf {
  // As wide as a block: GCC and Clang make SSE, NEON, ... of it. Wider ones are split badly where the target has none.
  typedef Word Type __attribute__((vector_size(kBlockBytes)));
};
template <typename Word>
using Lanes = typename LanesOf<Word>::Type;

template <typename Word>
constexpr int kWords = kBlockBytes / sizeof(Word);
template <typename Word>
constexpr int kBits = 8 * sizeof(Word);

template <typename Word>
Lanes<Word> load(const void* from) {
  Lanes<Word> lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

/// `set(lanes)`: all bits of a lane, or none.
template <typename Word, typename Set>
void pack_block(const Word* in, char* out, const Set& set) {
  Lanes<Word> block{};
  for (int bit = 0; bit < kBits<Word>; ++bit) {
    const auto mask = static_cast<Word>(Word{1} << bit);
    block |= set(load<Word>(in + bit * kWords<Word>)) & mask;
  }
  std::memcpy(out, &block, kBlockBytes);
}

/// The last block may be short: what it lacks counts as `filler`.
template <typename Word, typename Set>
void pack_all(const Word* in, int64_t elements, Word filler, char* out, const Set& set) {
  const int64_t whole = elements / kBlock;
  for (int64_t block = 0; block < whole; ++block) {
    pack_block(in + block * kBlock, out + block * kBlockBytes, set);
  }
  if (const int64_t rest = elements % kBlock; rest > 0) {
    Word last[kBlock];
    std::fill(std::copy_n(in + whole * kBlock, rest, last), last + kBlock, filler);
    pack_block(last, out + whole * kBlockBytes, set);
  }
}

template <typename Word>
void unpack_block(const char* in, Word zero, Word one, Word* out) {
  const auto block = load<Word>(in);
  for (int bit = 0; bit < kBits<Word>; ++bit) {
    const auto mask = static_cast<Word>(Word{1} << bit);
    const auto set = (Lanes<Word>)((block & mask) != Word{0});
    const Lanes<Word> lanes = (set & one) | (~set & zero);
    std::memcpy(out + bit * kWords<Word>, &lanes, sizeof(lanes));
  }
}

} // namespace

template <typename Word>
bool pack_equal(const Word* in, int64_t elements, Word zero, Word one, char* out) {
  Lanes<Word> neither{};
  pack_all(in, elements, zero, out, [&](Lanes<Word> lanes) {
    const auto set = (Lanes<Word>)(lanes != zero);
    neither |= set & (Lanes<Word>)(lanes != one);
    return set;
  });
  Word any = 0;
  for (int word = 0; word < kWords<Word>; ++word) {
    any |= neither[word];
  }
  return any == 0;
}

template <typename Word>
void pack_between(const Word* in, int64_t elements, Word after, Word last, char* out) {
  using Signed = std::make_signed_t<Word>;
  const auto above = static_cast<Signed>(after);
  const auto most = static_cast<Signed>(last);
  pack_all(in, elements, Word{0}, out, [&](Lanes<Word> lanes) {
    const auto values = (Lanes<Signed>)lanes;
    return (Lanes<Word>)((values > above) & (values <= most) & (values != Signed{0}));
  });
}

template <typename Word>
void unpack(const char* in, int64_t elements, Word zero, Word one, Word* out) {
  const int64_t whole = elements / kBlock;
  for (int64_t block = 0; block < whole; ++block) {
    unpack_block(in + block * kBlockBytes, zero, one, out + block * kBlock);
  }
  if (const int64_t rest = elements % kBlock; rest > 0) {
    Word last[kBlock];
    unpack_block(in + whole * kBlockBytes, zero, one, last);
    std::copy_n(last, rest, out + whole * kBlock);
  }
}

#define RECALS_BITS(Word)                                                    \
  template bool pack_equal<Word>(const Word*, int64_t, Word, Word, char*);   \
  template void pack_between<Word>(const Word*, int64_t, Word, Word, char*); \
  template void unpack<Word>(const char*, int64_t, Word, Word, Word*);
RECALS_BITS(uint8_t)
RECALS_BITS(uint16_t)
RECALS_BITS(uint32_t)
RECALS_BITS(uint64_t)
#undef RECALS_BITS

} // namespace recals::bits
