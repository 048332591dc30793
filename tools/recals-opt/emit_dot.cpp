#include <sstream>

#include "passes/plan/budget.h"
#include "tools/recals-opt/emit.h"
#include "tools/recals-opt/errors.h"

namespace recals::opt {

namespace {

std::string as_label(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c == '\n' ? ' ' : c;
  }
  return out + "\"";
}

class Drawing {
 public:
  explicit Drawing(const plan::StepGraph& step, const plan::Plan* plan) : step_(step), plan_(plan) {}

  std::string run() {
    out_ << "digraph step {\n  node [shape=box, style=filled, fillcolor=white, fontname=\"sans-serif\"];\n";
    size_t next_region = 0;
    for (size_t n = 0; n < step_.nodes.size(); ++n) {
      const bool in_plan = plan_ != nullptr && next_region < plan_->regions.size();
      if (in_plan && plan_->regions[next_region].first == static_cast<int>(n)) {
        out_ << "  subgraph cluster_region_" << next_region << " {\n  label=\"region_" << next_region << "\";\n";
      }
      node(n);
      if (in_plan && plan_->regions[next_region].last == static_cast<int>(n)) {
        out_ << "  }\n";
        ++next_region;
      }
    }
    for (size_t n = 0; n < step_.nodes.size(); ++n) {
      for (const int storage : step_.nodes[n].reads) {
        const int producer = step_.storages[storage].producer;
        if (producer != static_cast<int>(n)) {
          out_ << "  n" << producer << " -> n" << n << ";\n";
        }
      }
    }
    out_ << "}\n";
    return out_.str();
  }

 private:
  bool has_fate(int storage, plan::Fate fate) const {
    return plan_ != nullptr && plan_->choices[storage].fate == fate && step_.storages[storage].recomputable;
  }

  /// Orange: something it makes is recomputed. Yellow: something is packed. Blue: what it makes is kept for the backward.
  void node(size_t n) {
    const auto& node = step_.nodes[n];
    bool again = false;
    bool packed = false;
    int64_t bytes = 0;
    for (const int storage : node.writes) {
      again = again || has_fate(storage, plan::Fate::Recompute);
      packed = packed || has_fate(storage, plan::Fate::Pack);
      bytes += step_.storages[storage].bytes;
    }
    auto label = node.op;
    label += node.module.empty() ? "" : " of " + node.module;
    label += bytes > 0 ? ", " + plan::human_bytes(bytes) : "";
    const char* colour = again ? "orange" : packed ? "yellow" : bytes > 0 ? "lightblue" : "white";
    out_ << "  n" << n << " [label=" << as_label(label) << ", fillcolor=" << colour << "];\n";
  }

  const plan::StepGraph& step_;
  const plan::Plan* plan_;
  std::ostringstream out_;
};

} // namespace

std::string dot_of(const Job& job) {
  if (!job.analysis || job.sized.empty()) {
    throw BadInput("there is nothing to draw before the pass 'sizes'");
  }
  return Drawing(job.analysis->sizes.step, job.planned ? &job.planned->plan : nullptr).run();
}

} // namespace recals::opt
