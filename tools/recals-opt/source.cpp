#include "tools/recals-opt/source.h"

#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <regex>
#include <sstream>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <torch/csrc/jit/frontend/parser.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/ir/irparser.h>
#include <torch/csrc/jit/serialization/import.h>

#include "tools/recals-opt/absent_devices.h"
#include "tools/recals-opt/archive.h"
#include "tools/recals-opt/errors.h"
#include "tools/recals-opt/input_spec.h"

namespace recals::opt {

using torch::jit::Graph;
using torch::jit::Module;

namespace {

/// Torch's reader trusts what it reads. While this lives, a crash in it ends the process with one line and exit code 1.
class CrashGuard {
 public:
  CrashGuard() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      struct sigaction action {};
      action.sa_handler = &CrashGuard::crashed;
      sigaction(kSignals[i], &action, &before_[i]);
    }
  }
  ~CrashGuard() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  CrashGuard(const CrashGuard&) = delete;
  CrashGuard& operator=(const CrashGuard&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT};

  static void crashed(int) {
    const char message[] = "recals-opt: torch's reader crashed on the input; it is no valid TorchScript archive\n";
    // Only what POSIX allows in a handler.
    [[maybe_unused]] const auto written = write(STDERR_FILENO, message, sizeof(message) - 1);
    _exit(kBadInput);
  }

  std::array<struct sigaction, kSignals.size()> before_{};
};

/// A file as memory.
class Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status {};
    if (file < 0 || fstat(file, &status) != 0) {
      const std::string why = std::strerror(errno);
      if (file >= 0) {
        close(file);
      }
      throw BadInput("cannot be read: " + why);
    }
    size_ = static_cast<size_t>(status.st_size);
    regular_ = S_ISREG(status.st_mode);
    const bool folder = S_ISDIR(status.st_mode);
    if (regular_ && size_ > 0) {
      address_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    close(file);
    if (folder || address_ == MAP_FAILED) {
      throw BadInput(folder ? "is a folder" : std::string("cannot be read: ") + std::strerror(errno));
    }
  }
  ~Mapping() {
    if (address_ != nullptr && address_ != MAP_FAILED) {
      munmap(address_, size_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Pipes and the like have no size, and are read as streams.
  bool regular() const {
    return regular_;
  }
  std::string_view bytes() const {
    return address_ == nullptr ? std::string_view() : std::string_view(static_cast<const char*>(address_), size_);
  }

 private:
  void* address_ = nullptr;
  size_t size_ = 0;
  bool regular_ = false;
};

std::string read_stream(std::istream& in) {
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) {
    throw BadInput("cannot be read");
  }
  return bytes;
}

void check(std::string_view bytes, Content& content) {
  if (bytes.empty()) {
    throw BadInput("is empty");
  }
  content.archive = looks_like_archive(bytes);
  if (content.archive) {
    content.devices = check_archive(bytes);
  }
}

} // namespace

Content read_content(const std::string& path) {
  Content content;
  content.path = path;
  if (path != "-") {
    const Mapping mapping(path);
    if (mapping.regular()) {
      check(mapping.bytes(), content);
      content.bytes = content.archive ? "" : std::string(mapping.bytes());
      return content;
    }
    std::ifstream file(path, std::ios::binary);
    content.bytes = read_stream(file);
  } else {
    content.bytes = read_stream(std::cin);
  }
  check(content.bytes, content);
  return content;
}

namespace {

/// The one of an archive's devices that is not here. Torch can load its tensors to the CPU then, but not tell which of them
/// were on which device.
std::optional<c10::Device> absent_device(const std::vector<c10::Device>& devices) {
  for (const auto& device : devices) {
    if (is_here(device)) {
      continue;
    }
    if (devices.size() > 1) {
      throw BadInput(
          "its tensors are on " + devices[0].str() + " and " + devices[1].str() + ", and " + device.str() +
          " is not here; plan it on a machine that has all of them");
    }
    return device;
  }
  return std::nullopt;
}

} // namespace

Source load_archive(const Content& content) {
  const auto absent = absent_device(content.devices);
  const auto map_location = absent ? std::optional<c10::Device>(c10::kCPU) : std::nullopt;
  const CrashGuard guard;
  try {
    if (content.bytes.empty()) {
      return {torch::jit::load(content.path, map_location), nullptr, absent};
    }
    std::istringstream stream(content.bytes);
    return {torch::jit::load(stream, map_location), nullptr, absent};
  } catch (const std::exception& error) {
    // Not only c10::Error: torch's compiler has its own, and damaged pickles end in std::bad_alloc or std::out_of_range.
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    const auto what = one_line(of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
    if (what.find("Unknown builtin op") != std::string::npos) {
      throw BadInput(what + " (--load-library=FILE loads a library that has the op)");
    }
    throw BadInput("is no TorchScript archive that this torch can load: " + what);
  }
}

namespace {

/// torch.relu(x), as in source that people write, and ops.recals.keep(x, 4), as in the code that torch prints.
struct OpsResolver : public torch::jit::NativeResolver {
  struct Namespace : public torch::jit::SugaredValue {
    explicit Namespace(std::string name) : name(std::move(name)) {}
    std::string kind() const override {
      return "a namespace of ops";
    }
    std::shared_ptr<SugaredValue> attr(
        const torch::jit::SourceRange& place,
        torch::jit::GraphFunction&,
        const std::string& field) override {
      if (name.empty()) {
        return std::make_shared<Namespace>(field);
      }
      const auto symbol = c10::Symbol::fromQualString(name + "::" + field);
      if (torch::jit::getAllOperatorsFor(symbol).empty()) {
        throw torch::jit::ErrorReport(place) << "there is no op " << symbol.toQualString();
      }
      return std::make_shared<torch::jit::BuiltinFunction>(symbol, std::nullopt);
    }
    std::string name;
  };

  std::shared_ptr<torch::jit::SugaredValue> resolveValue(
      const std::string& name,
      torch::jit::GraphFunction& function,
      const torch::jit::SourceRange& place) override {
    return name == "ops" ? std::make_shared<Namespace>("") : NativeResolver::resolveValue(name, function, place);
  }
};

Module module_with(const Attributes& attributes) {
  Module module("Module");
  module.register_attribute("training", c10::BoolType::get(), true);
  auto add = [&](const std::string& text, const char* option, bool buffer) {
    const auto [name, spec] = split_name(text, option);
    auto tensor = value_of(spec, c10::TensorType::get(), std::string(option) + " '" + name + "'").toTensor();
    if (module.hasattr(name)) {
      throw UsageError(std::string(option) + " '" + text + "': there is a '" + name + "' already");
    }
    // Written to files, so not what happened to be in memory.
    at::NoGradGuard no_grad;
    if (is_here(tensor.device())) {
      tensor.zero_();
    }
    if (!buffer && (at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type()))) {
      tensor.set_requires_grad(true);
    }
    module.register_parameter(name, tensor, buffer);
  };
  for (const auto& text : attributes.parameters) {
    add(text, "--parameter", /*buffer=*/false);
  }
  for (const auto& text : attributes.buffers) {
    add(text, "--buffer", /*buffer=*/true);
  }
  return module;
}

/// As Module::define does, but with the name of the file.
void define_methods(const Text& text, const Module& module) {
  torch::jit::Parser parser(std::make_shared<torch::jit::Source>(text.text, text.file, text.line));
  const auto resolver = std::make_shared<OpsResolver>();
  std::vector<torch::jit::Def> definitions;
  std::vector<torch::jit::ResolverPtr> resolvers;
  while (parser.lexer().cur().kind != torch::jit::TK_EOF) {
    definitions.emplace_back(parser.parseFunction(/*is_method=*/true));
    resolvers.push_back(resolver);
  }
  const torch::jit::SimpleSelf self(module.type());
  module._ivalue()->compilation_unit()->define(*module.type()->name(), {}, {}, definitions, resolvers, &self);
}

/// A method returns one value.
void return_one(Graph& graph) {
  std::vector<torch::jit::Value*> outputs(graph.outputs().begin(), graph.outputs().end());
  if (outputs.size() == 1) {
    return;
  }
  auto* result =
      outputs.empty() ? graph.insertConstant(c10::IValue()) : graph.insertNode(graph.createTuple(outputs))->output();
  while (!graph.outputs().empty()) {
    graph.eraseOutput(graph.outputs().size() - 1);
  }
  graph.registerOutput(result);
}

/// Torch prints more than its parser reads: class types (self gets its own afterwards), and "= op()" where nothing is
/// returned.
std::string parseable(const std::string& text) {
  static const std::regex self(R"((graph\(\s*%self[.0-9]*\s*:\s*)[^,)]+)");
  static const std::regex no_output(R"((^|\n)[ \t]+= )");
  return std::regex_replace(
      std::regex_replace(text, self, "$1Tensor", std::regex_constants::format_first_only), no_output, "$1  ");
}

Source load_graph(const std::string& text, const std::string& method, Module module) {
  auto graph = std::make_shared<Graph>();
  std::unordered_map<std::string, torch::jit::Value*> values;
  torch::jit::parseIR(parseable(text), graph.get(), values);
  for (const auto& [name, value] : values) {
    // The parser numbers values anew; names that people gave stay.
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      value->setDebugName(name);
    }
  }
  const bool has_self = !graph->inputs().empty() && graph->inputs()[0]->debugNameBase() == "self";
  auto* input = has_self ? graph->inputs()[0] : graph->insertInput(0, "self");
  input->setType(module.type());
  auto body = graph->copy();
  return_one(*body);
  auto* function = module._ivalue()->compilation_unit()->create_function(
      c10::QualifiedName(*module.type()->name(), method), std::move(body));
  module.type()->addMethod(function);
  return {std::move(module), std::move(graph)};
}

/// Where the text begins behind comments and blank lines.
std::string_view beginning(std::string_view text) {
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    const auto first = line.find_first_not_of(" \t\r");
    if (first != std::string_view::npos && line[first] != '#') {
      return text.substr(first);
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return text;
}

} // namespace

Source load_text(const Text& text, const std::string& method, const Attributes& attributes) {
  const auto begin = beginning(text.text);
  const bool is_graph = begin.substr(0, 5) == "graph";
  if (!is_graph && begin.substr(0, 4) != "def ") {
    throw BadInput("is neither a TorchScript archive, nor TorchScript source ('def ...'), nor a graph ('graph(...)')");
  }
  auto module = module_with(attributes);
  if (is_graph) {
    return load_graph(text.text, method, std::move(module));
  }
  define_methods(text, module);
  return {std::move(module), nullptr};
}

std::vector<Text> split_text(const Text& text) {
  std::vector<Text> parts{{"", text.file, text.line}};
  std::istringstream lines(text.text);
  size_t number = text.line;
  for (std::string line; std::getline(lines, line); ++number) {
    if (line.compare(0, 7, "# -----") == 0) {
      parts.push_back({"", text.file, number + 1});
    } else {
      parts.back().text += line + "\n";
    }
  }
  return parts;
}

} // namespace recals::opt
