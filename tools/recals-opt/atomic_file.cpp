#include "tools/recals-opt/atomic_file.h"

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

/// The temporary file that a signal must remove; a handler can read nothing more than this.
char to_remove[PATH_MAX] = "";

void remove_and_end(int signal) {
  if (to_remove[0] != '\0') {
    unlink(to_remove);
  }
  // As if there had been no handler.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void remove_on_signals(const std::string& file) {
  std::strncpy(to_remove, file.c_str(), sizeof(to_remove) - 1);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    // What whoever started the command has switched off (nohup) stays so.
    if (now.sa_handler != SIG_IGN) {
      std::signal(signal, file.empty() ? SIG_DFL : &remove_and_end);
    }
  }
}

/// Links are followed, so that the link stays and its target changes.
std::string target_of(const std::string& path) {
  char real[PATH_MAX];
  return realpath(path.c_str(), real) == nullptr ? path : real;
}

/// mkstemp makes files for the owner alone; this is what open would have made.
unsigned default_mode() {
  const auto mask = umask(0);
  umask(mask);
  return 0666u & ~mask;
}

} // namespace

AtomicFile::AtomicFile(const std::string& path) : shown_(path) {
  // A full disk is an error of write, not the end of the process; so is a reader that went away.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  if (path.empty() || path == "-") {
    shown_ = "stdout";
    file_ = dup(STDOUT_FILENO);
    if (file_ < 0) {
      fail("cannot be written", errno);
    }
    return;
  }
  path_ = target_of(path);
  struct stat status {};
  const bool exists = stat(path_.c_str(), &status) == 0;
  if (exists && !S_ISREG(status.st_mode)) {
    file_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    path_.clear();
    if (file_ < 0) {
      fail("cannot be written", errno);
    }
    return;
  }
  if (exists && access(path_.c_str(), W_OK) != 0) {
    fail("cannot be written", errno);
  }
  mode_ = exists ? status.st_mode & 07777u : default_mode();
  const auto slash = path_.rfind('/');
  const auto folder = slash == std::string::npos ? "" : path_.substr(0, slash + 1);
  temporary_ = folder + "." + path_.substr(folder.size()) + ".XXXXXX";
  file_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (file_ < 0) {
    const int error = errno;
    temporary_.clear();
    fail("cannot be written: no file can be made beside it", error);
  }
  remove_on_signals(temporary_);
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) {
    close(file_);
  }
  if (!temporary_.empty()) {
    unlink(temporary_.c_str());
    remove_on_signals("");
  }
}

void AtomicFile::fail(const char* what, int error) const {
  throw BadInput(shown_ + ": " + what + ": " + std::strerror(error));
}

void AtomicFile::write(const void* bytes, size_t size) {
  const auto* next = static_cast<const char*>(bytes);
  while (size > 0) {
    const auto written = ::write(file_, next, size);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      fail("cannot be written", written == 0 ? ENOSPC : errno);
    }
    next += written;
    size -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  if (temporary_.empty()) {
    return;
  }
  // Its bytes are on the disk before its name is: after a power failure, too, it is the old file or the whole new one.
  if (fchmod(file_, mode_) != 0 || fsync(file_) != 0) {
    fail("cannot be written", errno);
  }
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("cannot be put in its place", errno);
  }
  temporary_.clear();
  remove_on_signals("");
}

} // namespace recals::opt
