/// Damaged archives: recals-opt must end with an exit code and one line, and leave no part of a file.
///
///   fuzz_archives plain|rewritten COUNT [FIRST]      FIRST: the number of the first case, to repeat one
///
/// Each case takes a good archive, changes some bytes (of the file, or inside a record whose checksum is then set right,
/// so that the change reaches torch's reader), and runs the command on it, in a child process that is replaced when a
/// case ends it.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/recals-opt/archive.h"
#include "tools/recals-opt/driver.h"

namespace recals::opt {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSource =
    "def layer(self, x, k: int):\n"
    "    return torch.dropout(torch.gelu(torch.linear(x, self.w, self.b)), 0.5, True) * k\n"
    "def forward(self, x):\n"
    "    for i in range(2):\n"
    "        x = self.layer(x, i + 1)\n"
    "    return torch.linear(x, self.w)\n";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Ended {
  int signal = 0;
  int code = -1;
  std::string errors;
};

/// The command in this process, its stderr in a file.
int run_here(const fs::path& folder, const std::vector<std::string>& arguments) {
  const int file = open((folder / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  dup2(file, STDERR_FILENO);
  close(file);
  // A case that hangs is a case that fails. It has 30 seconds of the CPU, so that a busy machine decides nothing, and 5
  // minutes to wait.
  const itimerval most = {{0, 0}, {30, 0}};
  setitimer(ITIMER_PROF, &most, nullptr);
  alarm(300);
  std::vector<const char*> argv{"recals-opt"};
  for (const auto& argument : arguments) {
    argv.push_back(argument.c_str());
  }
  argv.push_back(nullptr);
  const int code = run(static_cast<int>(argv.size()) - 1, argv.data());
  alarm(0);
  const itimerval none = {{0, 0}, {0, 0}};
  setitimer(ITIMER_PROF, &none, nullptr);
  return code;
}

/// What a worker tells while it lives, in memory that its death does not take away.
struct Shared {
  int next; ///< the case that runs, or is to run next
};

/// Runs cases one after the other in a child until one ends the child, or all are done. `run_case(i)` runs in the child,
/// `ended` is called there for cases that came back, and here for the one that did not.
template <typename RunCase, typename OnEnd>
void run_cases(Shared& shared, int end, RunCase run_case, OnEnd ended) {
  while (shared.next < end) {
    std::cout.flush();
    const pid_t child = fork();
    if (child == 0) {
      // A size that was damaged must not take the machine's memory. (The address sanitizer has a limit of its own: it
      // takes terabytes of addresses.)
#ifndef __SANITIZE_ADDRESS__
      const rlim_t most = rlim_t{24} << 30;
      const struct rlimit limit = {most, most};
      setrlimit(RLIMIT_AS, &limit);
#endif
      const int nothing = open("/dev/null", O_WRONLY);
      dup2(nothing, STDOUT_FILENO);
      for (; shared.next < end; ++shared.next) {
        const int i = shared.next;
        ended(i, Ended{0, run_case(i), ""});
      }
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (shared.next < end) {
      ended(
          shared.next++,
          Ended{WIFSIGNALED(status) ? WTERMSIG(status) : 0, WIFEXITED(status) ? WEXITSTATUS(status) : -1, ""});
    }
  }
}

// --- mutations ---------------------------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// 0 ... below - 1
  size_t pick(size_t below) {
    return below == 0 ? 0 : static_cast<size_t>(engine_() % below);
  }

 private:
  std::mt19937_64 engine_;
};

void change_bytes(std::string& bytes, Random& random) {
  if (bytes.empty()) {
    return;
  }
  const size_t at = random.pick(bytes.size());
  const size_t length = std::min(bytes.size() - at, 1 + random.pick(16));
  switch (random.pick(6)) {
    case 0:
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.pick(8)));
      break;
    case 1:
      bytes[at] = static_cast<char>(random.pick(256));
      break;
    case 2:
      for (size_t i = 0; i < length; ++i) {
        bytes[at + i] = static_cast<char>(random.pick(256));
      }
      break;
    case 3:
      std::memset(&bytes[at], random.pick(2) == 0 ? 0 : 0xff, length);
      break;
    case 4: // the same bytes elsewhere
      std::memmove(&bytes[random.pick(bytes.size() - length + 1)], &bytes[at], length);
      break;
    default:
      std::swap(bytes[at], bytes[random.pick(bytes.size())]);
  }
}

void change_length(std::string& bytes, Random& random) {
  const size_t at = random.pick(bytes.size());
  switch (random.pick(3)) {
    case 0:
      bytes.resize(at);
      break;
    case 1:
      bytes.erase(at, 1 + random.pick(64));
      break;
    default:
      bytes.insert(at, std::string(1 + random.pick(64), static_cast<char>(random.pick(256))));
  }
}

uint32_t number_at(const std::string& bytes, size_t at, int width) {
  uint32_t value = 0;
  for (int i = width; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)]);
  }
  return value;
}

uint32_t plain_crc32(std::string_view bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0u);
    }
  }
  return ~crc;
}

/// Changes bytes inside the records and gives them the checksums of what they now hold.
void change_records(std::string& bytes, Random& random) {
  std::vector<size_t> entries; // of the directory
  for (size_t at = 0; (at = bytes.find("PK\x01\x02", at)) != std::string::npos; ++at) {
    entries.push_back(at);
  }
  const size_t entry = entries.at(random.pick(entries.size()));
  const size_t header = number_at(bytes, entry + 42, 4);
  const size_t size = number_at(bytes, entry + 20, 4);
  const size_t begin = header + 30 + number_at(bytes, header + 26, 2) + number_at(bytes, header + 28, 2);
  std::string content = bytes.substr(begin, size);
  for (size_t i = 0; i <= random.pick(3); ++i) {
    change_bytes(content, random);
  }
  bytes.replace(begin, size, content);
  const uint32_t crc = plain_crc32(content);
  for (size_t i = 0; i < 4; ++i) {
    bytes[entry + 16 + i] = static_cast<char>(crc >> (8 * i));
  }
}

std::string mutated(std::string bytes, uint64_t seed) {
  Random random(seed);
  switch (random.pick(4)) {
    case 0:
      change_length(bytes, random);
      break;
    case 1:
      for (size_t i = 0; i <= random.pick(4); ++i) {
        change_bytes(bytes, random);
      }
      break;
    default:
      change_records(bytes, random);
  }
  return bytes;
}

// --- cases -------------------------------------------------------------------------------------------------------------

bool one_line(const std::string& errors) {
  return errors.rfind("recals-opt: ", 0) == 0 && errors.find('\n') == errors.size() - 1;
}

/// Under the address sanitizer: did `operator new` end the process because of a size that it would have thrown for?
bool asked_for_too_much(const Ended& ended) {
#ifdef __SANITIZE_ADDRESS__
  return ended.errors.find("AddressSanitizer: out-of-memory") != std::string::npos;
#else
  (void)ended;
  return false;
#endif
}

/// Empty: the case ended as it must.
std::string problem_of(const Ended& ended, const fs::path& out) {
  if (ended.signal != 0) {
    return "killed by signal " + std::to_string(ended.signal);
  }
  const bool there = fs::exists(out);
  if (ended.code == 0) {
    // A change may be harmless, or make another good module; what is written must be whole.
    try {
      check_archive(read_file(out));
    } catch (const std::exception& error) {
      return std::string("wrote a bad archive: ") + error.what();
    }
    return "";
  }
  if (ended.code != 1 && ended.code != 2 && ended.code != 3) {
    return "exit code " + std::to_string(ended.code);
  }
  if (!one_line(ended.errors)) {
    return "not one line:\n" + ended.errors;
  }
  return there ? "failed, and wrote a file" : "";
}

/// Files that were begun and not finished.
std::vector<fs::path> parts_in(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().rfind(".out.pt", 0) == 0) {
      parts.push_back(entry.path());
    }
  }
  return parts;
}

/// Counts of all workers.
struct Tally {
  Shared worker;
  int codes[4];
  int bad;
};

int fuzz(const std::string& kind, int count, int first) {
  char name[] = "/tmp/recals-fuzz-XXXXXX";
  const fs::path folder = mkdtemp(name);
  auto* tally =
      static_cast<Tally*>(mmap(nullptr, sizeof(Tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int report = dup(STDERR_FILENO); // workers point stderr elsewhere

  write_file(folder / "source.ts", kSource);
  const auto good = folder / "good.pt";
  std::vector<std::string> make{
      folder / "source.ts", "--parameter=w=f32[16,16]", "--parameter=b=f32[16]", "--emit=pt", "-o", good};
  if (kind == "rewritten") {
    make.insert(make.end(), {"--input=f32[256,16]", "--budget=85%"});
  }
  run_cases(
      tally->worker,
      1,
      [&](int) { return run_here(folder, make); },
      [&](int, const Ended& made) { tally->bad = made.code; });
  if (tally->bad != 0) {
    std::cerr << "the good archive could not be made: " << read_file(folder / "stderr");
    return 1;
  }

  const auto bytes = read_file(good);
  const auto input = folder / "input.pt";
  const auto out = folder / "out.pt";
  auto run_case = [&](int i) {
    write_file(input, mutated(bytes, static_cast<uint64_t>(i)));
    fs::remove(out);
    if (kind == "rewritten" && i % 2 == 0) {
      return run_here(folder, {input, "--restore", "-o", out});
    }
    return run_here(folder, {input, "--input=f32[256,16]", "--budget=85%", "-o", out});
  };
  auto ended = [&](int i, Ended end) {
    end.errors = read_file(folder / "stderr");
    if (asked_for_too_much(end)) {
      ++tally->codes[1];
      for (const auto& part : parts_in(folder)) {
        fs::remove(part);
      }
      return;
    }
    if (end.code >= 0 && end.code <= 3) {
      ++tally->codes[end.code];
    }
    const auto problem = problem_of(end, out);
    if (!problem.empty()) {
      ++tally->bad;
      dprintf(report, "case %d of %s: %s\n", i, kind.c_str(), problem.c_str());
    }
  };
  tally->worker.next = first;
  run_cases(tally->worker, first + count, run_case, ended);

  for (const auto& part : parts_in(folder)) {
    ++tally->bad;
    dprintf(report, "left behind: %s\n", part.c_str());
  }
  const auto& codes = tally->codes;
  std::cout << kind << ": " << count << " cases, " << codes[0] << " done, " << codes[1] << " bad input, "
            << codes[2] + codes[3] << " other, " << tally->bad << " problems\n";
  fs::remove_all(folder);
  // Cases that are all refused, or all taken, would not test much.
  return tally->bad == 0 && (count < 100 || (codes[0] > 0 && codes[1] > count / 4)) ? 0 : 1;
}

} // namespace
} // namespace recals::opt

int main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (argc < 3 || (kind != "plain" && kind != "rewritten")) {
    std::cerr << "usage: fuzz_archives plain|rewritten COUNT [FIRST]\n";
    return 2;
  }
  return recals::opt::fuzz(kind, std::atoi(argv[2]), argc > 3 ? std::atoi(argv[3]) : 0);
}
