#include "tools/recals-opt/archive.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <regex>
#include <string>

#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

// The zip format (APPNOTE.TXT of PKWARE), as far as torch writes it: stored records, zip64 where they are large.
constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kCentralHeader = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kEnd64Locator = 0x07064b50;
constexpr uint16_t kZip64Extra = 0x0001;
constexpr uint32_t kInZip64 = 0xffffffff;

/// CRC-32, eight bytes at a time ("slicing by 8"): a file is as large as the weights.
class Crc32 {
 public:
  Crc32() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) {
        value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0u);
      }
      tables_[0][i] = value;
    }
    for (size_t t = 1; t < tables_.size(); ++t) {
      for (size_t i = 0; i < 256; ++i) {
        const uint32_t before = tables_[t - 1][i];
        tables_[t][i] = (before >> 8) ^ tables_[0][before & 0xff];
      }
    }
  }

  uint32_t of(std::string_view bytes) const {
    uint32_t crc = 0xffffffffu;
    size_t i = 0;
    auto byte = [&](size_t at) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[at])); };
    for (; i + 8 <= bytes.size(); i += 8) {
      const uint32_t low = crc ^ (byte(i) | byte(i + 1) << 8 | byte(i + 2) << 16 | byte(i + 3) << 24);
      crc = tables_[7][low & 0xff] ^ tables_[6][low >> 8 & 0xff] ^ tables_[5][low >> 16 & 0xff] ^
          tables_[4][low >> 24] ^ tables_[3][byte(i + 4)] ^ tables_[2][byte(i + 5)] ^ tables_[1][byte(i + 6)] ^
          tables_[0][byte(i + 7)];
    }
    for (; i < bytes.size(); ++i) {
      crc = (crc >> 8) ^ tables_[0][(crc ^ byte(i)) & 0xff];
    }
    return ~crc;
  }

 private:
  std::array<std::array<uint32_t, 256>, 8> tables_;
};

[[noreturn]] void damaged(const std::string& why) {
  throw BadInput("the archive is damaged: " + why);
}

/// Little-endian numbers, never read beyond the end.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T read(uint64_t at) const {
    if (at > bytes_.size() || bytes_.size() - at < sizeof(T)) {
      damaged("it ends too early");
    }
    T value = 0;
    for (size_t i = sizeof(T); i-- > 0;) {
      value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes_[at + i]));
    }
    return value;
  }

  std::string_view part(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) {
      damaged("it ends too early");
    }
    return bytes_.substr(at, size);
  }

  uint64_t size() const {
    return bytes_.size();
  }

 private:
  std::string_view bytes_;
};

struct Directory {
  uint64_t offset = 0;
  uint64_t records = 0;
};

uint64_t find_end(const Bytes& file) {
  constexpr uint64_t kEndSize = 22;
  constexpr uint64_t kLongestComment = 0xffff;
  if (file.size() < kEndSize) {
    damaged("it ends too early");
  }
  const uint64_t last = file.size() - kEndSize;
  for (uint64_t back = 0; back <= kLongestComment && back <= last; ++back) {
    if (file.read<uint32_t>(last - back) == kEnd) {
      return last - back;
    }
  }
  damaged("it has no directory; was it cut off?");
}

Directory directory_of(const Bytes& file) {
  const uint64_t end = find_end(file);
  Directory directory{file.read<uint32_t>(end + 16), file.read<uint16_t>(end + 10)};
  constexpr uint64_t kLocatorSize = 20;
  if (end >= kLocatorSize && file.read<uint32_t>(end - kLocatorSize) == kEnd64Locator) {
    const auto end64 = file.read<uint64_t>(end - kLocatorSize + 8);
    if (file.read<uint32_t>(end64) != kEnd64) {
      damaged("its directory is not where it says");
    }
    directory = {file.read<uint64_t>(end64 + 48), file.read<uint64_t>(end64 + 32)};
  }
  return directory;
}

struct Record {
  std::string name;
  uint16_t method = 0;
  uint32_t crc = 0;
  uint64_t stored = 0;
  uint64_t size = 0;
  uint64_t header = 0;
  uint64_t next = 0; ///< of the directory
};

/// Sizes and places of 4 GiB and more stand in an extra field, those that are needed, in this order.
void read_zip64(const Bytes& file, uint64_t at, uint64_t size, Record& record) {
  const uint64_t stop = at + size;
  while (at + 4 <= stop) {
    const auto id = file.read<uint16_t>(at);
    const auto length = file.read<uint16_t>(at + 2);
    uint64_t field = at + 4;
    at = field + length;
    if (id != kZip64Extra) {
      continue;
    }
    for (uint64_t* value : {&record.size, &record.stored, &record.header}) {
      if (*value == kInZip64) {
        *value = file.read<uint64_t>(field);
        field += 8;
      }
    }
  }
}

Record record_at(const Bytes& file, uint64_t at) {
  if (file.read<uint32_t>(at) != kCentralHeader) {
    damaged("its directory is not whole");
  }
  const auto name = file.read<uint16_t>(at + 28);
  const auto extra = file.read<uint16_t>(at + 30);
  const auto comment = file.read<uint16_t>(at + 32);
  Record record;
  record.name = file.part(at + 46, name);
  record.method = file.read<uint16_t>(at + 10);
  record.crc = file.read<uint32_t>(at + 16);
  record.stored = file.read<uint32_t>(at + 20);
  record.size = file.read<uint32_t>(at + 24);
  record.header = file.read<uint32_t>(at + 42);
  record.next = at + 46 + name + extra + comment;
  read_zip64(file, at + 46 + name, extra, record);
  return record;
}

/// What is stored of it.
std::string_view check_record(const Bytes& file, const Record& record) {
  static const Crc32 crc32;
  if (file.read<uint32_t>(record.header) != kLocalHeader) {
    damaged("'" + record.name + "' is not where the directory says");
  }
  const auto name = file.read<uint16_t>(record.header + 26);
  const auto extra = file.read<uint16_t>(record.header + 28);
  if (file.part(record.header + 30, name) != record.name) {
    damaged("'" + record.name + "' is not where the directory says");
  }
  const auto bytes = file.part(record.header + 30 + name + extra, record.stored);
  // Torch stores its records; the checksum of a compressed one is that of its content, which torch unpacks.
  if (record.method == 0 && (record.size != record.stored || crc32.of(bytes) != record.crc)) {
    damaged("'" + record.name + "' does not have the checksum that it was written with");
  }
  return bytes;
}

/// What a pickle says of its tensors: ("storage", a type, the name of the record, the device, the number of elements). The
/// name is a number, and each new string is followed by its place in the memo: X....0 q. X....cuda:0. Its digits are
/// limited as the expression is matched by recursion, and a damaged file may hold any number of them.
void find_devices(std::string_view pickle, std::vector<c10::Device>& devices) {
  static const std::regex kNameAndDevice(
      R"(X[\s\S]\x00\x00\x00\d{1,9}(?:q[\s\S]|r[\s\S]{4})X[\s\S]\x00\x00\x00(cpu|cuda:\d{1,2}))");
  const char* const end = pickle.data() + pickle.size();
  for (std::cregex_iterator found(pickle.data(), end, kNameAndDevice), none; found != none; ++found) {
    const c10::Device device((*found)[1].str());
    if (std::find(devices.begin(), devices.end(), device) == devices.end()) {
      devices.push_back(device);
    }
  }
}

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

bool looks_like_archive(std::string_view bytes) {
  return bytes.substr(0, 2) == "PK";
}

std::vector<c10::Device> check_archive(std::string_view bytes) {
  const Bytes file(bytes);
  const auto directory = directory_of(file);
  uint64_t at = directory.offset;
  bool constants = false;
  bool data = false;
  std::vector<c10::Device> devices;
  for (uint64_t i = 0; i < directory.records; ++i) {
    const auto record = record_at(file, at);
    const auto stored = check_record(file, record);
    if (ends_with(record.name, ".pkl")) {
      find_devices(stored, devices);
    }
    constants = constants || ends_with(record.name, "/constants.pkl");
    data = data || ends_with(record.name, "/data.pkl");
    at = record.next;
  }
  if (!constants || !data) {
    throw BadInput(
        "it is a zip archive, but holds no TorchScript module (there is no " +
        std::string(data ? "constants.pkl" : "data.pkl") + "); save one with torch.jit.save");
  }
  return devices;
}

} // namespace recals::opt
