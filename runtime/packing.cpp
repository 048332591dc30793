#include "runtime/packing.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include "runtime/bit_codec.h"

namespace recals {

namespace {

/// Calls `with(Word())` with the unsigned integer that is as wide as an element of `dtype`.
template <typename With>
auto with_word(c10::ScalarType dtype, const With& with) {
  switch (c10::elementSize(dtype)) {
    case 1:
      return with(uint8_t());
    case 2:
      return with(uint16_t());
    case 4:
      return with(uint32_t());
    default:
      return with(uint64_t());
  }
}

/// Ranges of elements begin on a block.
template <typename Word>
const Word* at(const at::Tensor& elements, int64_t begin) {
  return static_cast<const Word*>(elements.const_data_ptr()) + begin;
}

template <typename Word>
Word* at_mutable(const at::Tensor& elements, int64_t begin) {
  return static_cast<Word*>(elements.mutable_data_ptr()) + begin;
}

char* block_at(char* packed, int64_t element) {
  return packed + element / bits::kBlock * bits::kBlockBytes;
}

const char* block_at(const char* packed, int64_t element) {
  return packed + element / bits::kBlock * bits::kBlockBytes;
}

int64_t bit_bytes(int64_t elements, c10::ScalarType) {
  return bits::blocks(elements) * bits::kBlockBytes;
}

// Two values: both stand before the bits.

struct TwoValues {
  static constexpr int64_t kHead = 16;

  static bool takes(c10::ScalarType dtype) {
    return c10::isFloatingType(dtype) && c10::elementSize(dtype) <= 8;
  }

  static int64_t packed_bytes(int64_t elements, c10::ScalarType dtype) {
    return kHead + bit_bytes(elements, dtype);
  }

  static void head(const at::Tensor& elements, char* packed) {
    with_word(elements.scalar_type(), [&](auto word) {
      using Word = decltype(word);
      const Word* begin = at<Word>(elements, 0);
      const Word* end = begin + elements.numel();
      Word values[2] = {0, 0};
      if (begin != end) {
        const Word* other = std::find_if(begin, end, [&](Word value) { return value != *begin; });
        values[0] = *begin;
        values[1] = other == end ? *begin : *other;
      }
      std::memcpy(packed, values, sizeof(values));
    });
  }

  static bool pack(const at::Tensor& elements, char* packed, int64_t begin, int64_t end) {
    return with_word(elements.scalar_type(), [&](auto word) {
      using Word = decltype(word);
      Word values[2];
      std::memcpy(values, packed, sizeof(values));
      return bits::pack_equal(
          at<Word>(elements, begin), end - begin, values[0], values[1], block_at(packed + kHead, begin));
    });
  }

  static void unpack(const char* packed, const at::Tensor& elements, int64_t begin, int64_t end) {
    with_word(elements.scalar_type(), [&](auto word) {
      using Word = decltype(word);
      Word values[2];
      std::memcpy(values, packed, sizeof(values));
      bits::unpack(
          block_at(packed + kHead, begin), end - begin, values[0], values[1], at_mutable<Word>(elements, begin));
    });
  }
};

struct Booleans {
  static bool takes(c10::ScalarType dtype) {
    return dtype == c10::kBool;
  }

  static bool pack(const at::Tensor& elements, char* packed, int64_t begin, int64_t end) {
    return bits::pack_equal<uint8_t>(at<uint8_t>(elements, begin), end - begin, 0, 1, block_at(packed, begin));
  }

  static void unpack(const char* packed, const at::Tensor& elements, int64_t begin, int64_t end) {
    bits::unpack<uint8_t>(block_at(packed, begin), end - begin, 0, 1, at_mutable<uint8_t>(elements, begin));
  }
};

/// One stands for what is positive, zero for the rest. Kernels that compare with `> 0` count what is no number to the
/// rest, those that compare with `<= 0` to the positive.
template <bool no_number_counts>
struct Positive {
  static bool takes(c10::ScalarType dtype) {
    return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf || dtype == c10::kBFloat16;
  }

  struct Bits {
    uint64_t infinity;
    uint64_t one;
  };
  static Bits bits_of(c10::ScalarType dtype) {
    switch (dtype) {
      case c10::kHalf:
        return {0x7c00, 0x3c00};
      case c10::kBFloat16:
        return {0x7f80, 0x3f80};
      case c10::kFloat:
        return {0x7f800000, 0x3f800000};
      default:
        return {0x7ff0000000000000, 0x3ff0000000000000};
    }
  }

  static bool pack(const at::Tensor& elements, char* packed, int64_t begin, int64_t end) {
    const auto infinity = bits_of(elements.scalar_type()).infinity;
    with_word(elements.scalar_type(), [&](auto word) {
      using Word = decltype(word);
      constexpr Word kMost = std::numeric_limits<std::make_signed_t<Word>>::max();
      const Word positive = static_cast<Word>(infinity);
      const Word negative = static_cast<Word>(positive | (kMost + 1u));
      bits::pack_between<Word>(
          at<Word>(elements, begin),
          end - begin,
          no_number_counts ? negative : Word{0},
          no_number_counts ? kMost : positive,
          block_at(packed, begin));
    });
    return true;
  }

  static void unpack(const char* packed, const at::Tensor& elements, int64_t begin, int64_t end) {
    const auto one = bits_of(elements.scalar_type()).one;
    with_word(elements.scalar_type(), [&](auto word) {
      using Word = decltype(word);
      bits::unpack<Word>(
          block_at(packed, begin), end - begin, 0, static_cast<Word>(one), at_mutable<Word>(elements, begin));
    });
  }
};

/// Nothing is kept of what the backward only asks for its sizes.
struct Unread {
  static bool takes(c10::ScalarType) {
    return true;
  }

  static int64_t packed_bytes(int64_t, c10::ScalarType) {
    return 0;
  }

  static bool pack(const at::Tensor&, char*, int64_t, int64_t) {
    return true;
  }

  static void unpack(const char*, const at::Tensor&, int64_t, int64_t) {}
};

/// Positions as narrower integers.
template <typename Narrow>
struct Positions {
  static bool takes(c10::ScalarType dtype) {
    return dtype == c10::kLong;
  }

  static int64_t packed_bytes(int64_t elements, c10::ScalarType) {
    return elements * static_cast<int64_t>(sizeof(Narrow));
  }

  static bool pack(const at::Tensor& elements, char* packed, int64_t begin, int64_t end) {
    const auto* in = at<uint64_t>(elements, begin);
    auto* out = reinterpret_cast<Narrow*>(packed) + begin;
    uint64_t all = 0;
    for (int64_t i = 0; i < end - begin; ++i) {
      all |= in[i];
      out[i] = static_cast<Narrow>(in[i]);
    }
    return all <= std::numeric_limits<Narrow>::max(); // negative ones are larger than any
  }

  static void unpack(const char* packed, const at::Tensor& elements, int64_t begin, int64_t end) {
    const auto* in = reinterpret_cast<const Narrow*>(packed) + begin;
    std::copy_n(in, end - begin, at_mutable<uint64_t>(elements, begin));
  }
};

template <typename Codec>
Packer packer_of(const char* name, const char* broken, bool lossless) {
  Packer packer;
  packer.name = name;
  packer.broken = broken;
  packer.lossless = lossless;
  packer.takes = &Codec::takes;
  if constexpr (requires { &Codec::packed_bytes; }) {
    packer.packed_bytes = &Codec::packed_bytes;
  } else {
    packer.packed_bytes = &bit_bytes;
  }
  if constexpr (requires { &Codec::head; }) {
    packer.pack_head = &Codec::head;
  }
  packer.pack_range = &Codec::pack;
  packer.unpack_range = &Codec::unpack;
  return packer;
}

/// Shares `elements` out between torch's threads in ranges that begin on a block. at::parallel_for would run on one
/// thread here: it is a template that needs OpenMP in whoever compiles it; TensorIterator's loop is inside torch.
template <typename Work>
void for_ranges(int64_t elements, const at::Tensor& packed, const Work& work) {
  constexpr int64_t kChunk = 64 * bits::kBlock;
  constexpr int64_t kGrain = 4; // chunks: 32768 elements, as torch's own kernels
  const int64_t chunks = (elements + kChunk - 1) / kChunk;
  if (chunks <= kGrain || packed.numel() == 0) {
    work(0, elements);
    return;
  }
  // One byte stands for each chunk: an iterator tells by addresses where it is. Nothing is read or written through it.
  auto places = packed.narrow(0, 0, chunks);
  const auto* base = static_cast<const char*>(packed.const_data_ptr());
  auto iterator = at::TensorIterator::nullary_op(places);
  iterator.for_each(
      [&](char** data, const int64_t*, int64_t columns, int64_t rows) {
        const int64_t first = data[0] - base;
        work(first * kChunk, std::min(elements, (first + columns * rows) * kChunk));
      },
      kGrain);
}

std::string known_names() {
  std::vector<std::string> names;
  for (const auto& known : packers()) {
    names.push_back(known.name);
  }
  return c10::Join(", ", names);
}

} // namespace

at::Tensor Packer::pack(const at::Tensor& elements) const {
  TORCH_CHECK(
      takes(elements.scalar_type()) && elements.dim() == 1 && elements.is_contiguous(),
      "recals: '",
      name,
      "' does not pack ",
      elements.toString(),
      elements.sizes());
  auto packed = at::empty(
      {packed_bytes(elements.numel(), elements.scalar_type())},
      elements.options().dtype(at::kByte).requires_grad(false));
  if (elements.is_meta()) {
    return packed;
  }
  TORCH_CHECK(elements.is_cpu(), "recals: '", name, "' packs on the CPU, not on ", elements.device());
  auto* bytes = static_cast<char*>(packed.mutable_data_ptr());
  if (pack_head != nullptr) {
    pack_head(elements, bytes);
  }
  std::atomic<bool> kept{true};
  for_ranges(elements.numel(), packed, [&](int64_t begin, int64_t end) {
    if (!pack_range(elements, bytes, begin, end)) {
      kept = false;
    }
  });
  return kept ? packed : at::Tensor();
}

at::Tensor Packer::unpack(const at::Tensor& packed, int64_t elements, c10::ScalarType dtype) const {
  auto unpacked = at::empty({elements}, packed.options().dtype(dtype));
  if (!packed.is_meta()) {
    const auto* bytes = static_cast<const char*>(packed.const_data_ptr());
    for_ranges(elements, packed, [&](int64_t begin, int64_t end) { unpack_range(bytes, unpacked, begin, end); });
  }
  return unpacked;
}

const std::vector<Packer>& packers() {
  static const std::vector<Packer> table = {
      packer_of<TwoValues>("two values", "it holds a third value", true),
      packer_of<Booleans>("booleans", "it holds something else than booleans", true),
      packer_of<Positions<uint8_t>>("positions u8", "it holds a position beyond 2^8 - 1", true),
      packer_of<Positions<uint16_t>>("positions u16", "it holds a position beyond 2^16 - 1", true),
      packer_of<Positions<uint32_t>>("positions u32", "it holds a position beyond 2^32 - 1", true),
      packer_of<Positive<true>>("where positive", "it is read for more than its sign", false),
      packer_of<Positive<false>>("where above zero", "it is read for more than its sign", false),
      packer_of<Unread>("unread", "it is read", false),
  };
  return table;
}

const Packer& packer(const std::string& name) {
  const auto& all = packers();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Packer& known) { return known.name == name; });
  TORCH_CHECK(found != all.end(), "recals: no packer is called '", name, "'; there are: ", known_names());
  return *found;
}

at::Tensor elements_of(const at::Tensor& tensor) {
  at::NoGradGuard no_grad;
  const auto count = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  auto elements = at::empty({0}, tensor.options().requires_grad(false));
  return elements.set_(tensor.storage(), 0, {count}, {1});
}

} // namespace recals
