#pragma once

/// The command as a function.

namespace recals::opt {

/// Reads, runs the pipeline, writes; the exit code (errors.h). What is asked for goes to stdout or the output file,
/// everything else to stderr.
int run(int argc, const char* const* argv);

} // namespace recals::opt
