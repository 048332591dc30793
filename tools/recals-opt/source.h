#pragma once

/// What the command reads: an archive, TorchScript source, or a graph as text.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>

namespace recals::opt {

/// Attributes of self for text, which has none of its own: "NAME=SPEC" (input_spec.h).
struct Attributes {
  std::vector<std::string> parameters;
  std::vector<std::string> buffers;
};

struct Source {
  torch::jit::Module module;
  std::shared_ptr<torch::jit::Graph> graph; ///< of a text graph, with the module as its first input; else null
  /// The device of the archive's tensors if it is not here. They are on the CPU then.
  std::optional<c10::Device> absent_device{};
};

/// The content of `path`, "-" for stdin. An archive that is a file is left where it is: its bytes are empty.
struct Content {
  std::string path;
  std::string bytes;
  bool archive = false;
  std::vector<c10::Device> devices{}; ///< of an archive's tensors
};

/// Throws BadInput if it cannot be read or is a damaged archive.
Content read_content(const std::string& path);

/// Throws BadInput (tensors of several devices that are not all here, say), or c10::Error for what torch's compiler and
/// reader refuse.
Source load_archive(const Content& content);

/// A text, or a part of one, and where it stands, for messages.
struct Text {
  std::string text;
  std::string file;
  size_t line = 1; ///< of the file, where the text begins
};

/// "def ..." is TorchScript source, the methods of a module; "graph(...)" is a graph, the method `method`. A first
/// input %self is the module, whatever type is written; without one, it is added. Throws like load_archive.
Source load_text(const Text& text, const std::string& method, const Attributes& attributes);

/// The parts of a text between lines "# -----".
std::vector<Text> split_text(const Text& text);

} // namespace recals::opt
