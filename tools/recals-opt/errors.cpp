#include "tools/recals-opt/errors.h"

#include <cctype>

namespace recals::opt {

std::string one_line(const std::string& message) {
  constexpr size_t kMost = 1000;
  std::string text = message.substr(0, message.find("\nException raised from"));
  const std::string prefix = "recals: ";
  if (text.compare(0, prefix.size(), prefix) == 0) {
    text.erase(0, prefix.size());
  }
  // Where a type lives in memory helps nobody, and makes each message another one.
  const std::string address = " (of Python compilation unit at: ";
  for (auto at = text.find(address); at != std::string::npos; at = text.find(address)) {
    const auto end = text.find(')', at);
    text.erase(at, end == std::string::npos ? end : end + 1 - at);
  }
  std::string line;
  for (const char c : text) {
    const bool blank =
        std::isspace(static_cast<unsigned char>(c)) != 0 || std::iscntrl(static_cast<unsigned char>(c)) != 0;
    if (!blank) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
    if (line.size() >= kMost) {
      return line + "...";
    }
  }
  while (!line.empty() && line.back() == ' ') {
    line.pop_back();
  }
  return line;
}

} // namespace recals::opt
