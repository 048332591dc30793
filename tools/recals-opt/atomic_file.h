#pragma once

/// A file that is written whole or not at all: a temporary one beside it, renamed at the end.

#include <cstddef>
#include <string>

namespace recals::opt {

class AtomicFile {
 public:
  /// `path`: a file to make or replace (a link is followed, the permissions stay); something that is no regular file
  /// (a pipe, /dev/null) is written in place; "" or "-" is stdout. Throws BadInput if it cannot be opened.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws BadInput with the system's reason.
  void write(const void* bytes, size_t size);

  /// Puts the file in its place. Without it nothing is left behind.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string shown_; ///< for messages
  std::string path_; ///< empty: written in place
  std::string temporary_;
  int file_ = -1;
  unsigned mode_ = 0;
};

} // namespace recals::opt
