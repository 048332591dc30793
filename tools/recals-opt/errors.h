#pragma once

/// How the command fails: each kind has its exit code.

#include <stdexcept>
#include <string>

namespace recals::opt {

enum ExitCode : int {
  kDone = 0,
  kBadInput = 1, ///< a file, what is in it, or what could not be written
  kUsage = 2, ///< the command line
  kOverBudget = 3, ///< no plan fits, or --check found the file above its budget
};

class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A message of torch as one line: without its stack, its indentation, and the prefix of Recals' own errors.
std::string one_line(const std::string& message);

} // namespace recals::opt
