/// Each packer: what comes back is what went in, or cannot be told from it by the kernel that reads it.

#include <gtest/gtest.h>

#include <limits>

#include <ATen/Parallel.h>

#include "runtime/memory_tracker.h"
#include "runtime/packing.h"

namespace recals {
namespace {

/// Around words, blocks, chunks of threads, and their ends.
const std::vector<int64_t>& lengths() {
  static const std::vector<int64_t> all = {0, 1, 2, 7, 8, 31, 63, 64, 127, 128, 129, 1000, 8192, 40000, 65536 * 3 + 5};
  return all;
}

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
      std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

at::Tensor there_and_back(const Packer& packer, const at::Tensor& elements) {
  const auto packed = packer.pack(elements);
  EXPECT_TRUE(packed.defined());
  EXPECT_EQ(packed.numel(), packer.packed_bytes(elements.numel(), elements.scalar_type()));
  return packer.unpack(packed, elements.numel(), elements.scalar_type());
}

const std::vector<c10::ScalarType> kFloats = {c10::kFloat, c10::kDouble, c10::kHalf, c10::kBFloat16};

TEST(Packing, TwoValuesOfAnyFloatKeepTheirBits) {
  const auto& two = packer("two values");
  for (auto dtype : kFloats) {
    for (double other : {1.0 / 0.9, 2.0, -0.0, std::numeric_limits<double>::quiet_NaN()}) {
      for (int64_t length : lengths()) {
        auto noise = at::zeros({length}, dtype);
        noise.masked_fill_(at::rand({length}) < 0.7, other);
        EXPECT_TRUE(same_bytes(there_and_back(two, noise), noise)) << dtype << " " << length << " " << other;
      }
    }
  }
}

TEST(Packing, OneValueAlone) {
  for (int64_t length : lengths()) {
    const auto ones = at::full({length}, 1.25);
    EXPECT_TRUE(same_bytes(there_and_back(packer("two values"), ones), ones));
  }
}

TEST(Packing, AThirdValueAnywhereIsNoticed) {
  const auto& two = packer("two values");
  for (auto dtype : kFloats) {
    for (int64_t length : {5, 128, 129, 70000}) {
      for (int64_t place : {int64_t{0}, length / 2, length - 1}) {
        auto noise = (at::arange(length) % 2).to(dtype);
        noise[place] = 3.0;
        EXPECT_FALSE(two.pack(noise).defined()) << dtype << " " << length << " " << place;
      }
    }
  }
}

TEST(Packing, BooleansKeepTheirValues) {
  for (int64_t length : lengths()) {
    const auto mask = at::rand({length}) < 0.3;
    EXPECT_TRUE(same_bytes(there_and_back(packer("booleans"), mask), mask)) << length;
  }
  // Bytes that were made something else and are only called booleans.
  const auto bytes = at::full({200}, 2, at::kByte);
  EXPECT_FALSE(packer("booleans").pack(bytes.view(at::kBool)).defined());
}

TEST(Packing, PositionsKeepTheirValuesUpToTheirBound) {
  for (const auto& [name, most] : std::vector<std::pair<std::string, int64_t>>{
           {"positions u8", 0xff}, {"positions u16", 0xffff}, {"positions u32", 0xffffffff}}) {
    for (int64_t length : lengths()) {
      auto positions = at::randint(most, {length}, at::kLong);
      if (length > 0) {
        positions[length / 2] = most;
      }
      EXPECT_TRUE(same_bytes(there_and_back(packer(name), positions), positions)) << name << " " << length;
      if (length > 0) {
        for (int64_t wrong : {most + 1, int64_t{-1}}) {
          auto beyond = positions.clone();
          beyond[length - 1] = wrong;
          EXPECT_FALSE(packer(name).pack(beyond).defined()) << name << " " << length << " " << wrong;
        }
      }
    }
  }
}

TEST(Packing, SignsServeTheBackwardsThatReadThem) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Every kind of float; results of relu hold no negative ones, but the promise is about the comparison.
  const auto special = at::tensor(
      {0.0, -0.0, 1.0, -1.0, inf, -inf, nan, -nan, 1e-45, -1e-45, 6e-8, -6e-8, 1e38, -1e38, 5e-324, -5e-324},
      at::kDouble);
  for (auto dtype : kFloats) {
    for (int64_t length : lengths()) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::to_string(length));
      auto values = at::randn({length}).to(dtype);
      values.narrow(0, 0, std::min<int64_t>(length, 16)).copy_(special.narrow(0, 0, std::min<int64_t>(length, 16)));
      const auto gradient = at::randn({length}).to(dtype);
      EXPECT_TRUE(same_bytes(
          at::threshold_backward(gradient, there_and_back(packer("where positive"), values), 0),
          at::threshold_backward(gradient, values, 0)));
      EXPECT_TRUE(same_bytes(
          at::leaky_relu_backward(gradient, there_and_back(packer("where above zero"), values), 0.1, false),
          at::leaky_relu_backward(gradient, values, 0.1, false)));
    }
  }
}

TEST(Packing, TakesAnEighthOfAByteForEachElement) {
  EXPECT_EQ(packer("two values").packed_bytes(1 << 20, c10::kFloat), (1 << 17) + 16);
  EXPECT_EQ(packer("where positive").packed_bytes(1 << 20, c10::kDouble), 1 << 17);
  EXPECT_EQ(packer("booleans").packed_bytes(129, c10::kBool), 32);
  EXPECT_EQ(packer("positions u16").packed_bytes(5, c10::kLong), 10);
}

TEST(Packing, AllocatesNothingBesideItsResult) {
  // What a dry run counts is what a run takes.
  const auto noise = (at::rand({200000}) < 0.5).to(at::kFloat);
  auto tracker = MemoryTracker::start(false);
  const auto packed = packer("two values").pack(noise);
  EXPECT_EQ(tracker->devices().at("cpu").peak, packed.numel());
  const auto unpacked = packer("two values").unpack(packed, noise.numel(), at::kFloat);
  EXPECT_EQ(tracker->devices().at("cpu").peak, packed.numel() + static_cast<int64_t>(noise.nbytes()));
  tracker->stop();
}

TEST(Packing, OnManyThreadsAsOnOne) {
  const auto values = at::randn({300001});
  at::set_num_threads(4);
  const auto many = packer("where positive").pack(values);
  at::set_num_threads(1);
  const auto one = packer("where positive").pack(values);
  EXPECT_TRUE(at::equal(many, one));
}

TEST(Packing, MetaTensorsHaveTheSizes) {
  const auto meta = at::empty({1000}, at::TensorOptions().device(c10::kMeta).dtype(at::kFloat));
  for (const auto& each : packers()) {
    if (!each.takes(at::kFloat)) {
      continue;
    }
    const auto packed = each.pack(meta);
    EXPECT_EQ(packed.numel(), each.packed_bytes(1000, at::kFloat));
    EXPECT_EQ(each.unpack(packed, 1000, at::kFloat).numel(), 1000);
  }
}

TEST(Packing, AViewIsPackedAsItsWholeStorage) {
  const auto base = at::randn({6, 10});
  const auto elements = elements_of(base.t().slice(0, 2, 8, 3));
  EXPECT_EQ(elements.numel(), 60);
  EXPECT_TRUE(elements.is_alias_of(base));
}

TEST(Packing, UnknownNamesAreErrorsThatNameTheKnownOnes) {
  try {
    packer("three values");
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("two values, booleans"), std::string::npos) << error.what();
  }
}

} // namespace
} // namespace recals
