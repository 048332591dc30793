#!/usr/bin/env python3
"""Write the table of saved slots: for each autograd node type of the installed LibTorch, a visitor of what it saves.

usage: gen_saved_slots.py <torch/csrc/autograd/generated/Functions.h> <out.cpp>

Functions.h declares every generated autograd node with its ``SavedVariable`` members public. The members are visited in
the order of their names, which is the order in which the header declares them; this order is the slot number.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

STRUCT = re.compile(r"^struct TORCH_API (?P<name>\w+) : public (?:TraceableFunction|Node) \{$")
ONE = re.compile(r"^\s+(?:torch::autograd::)?SavedVariable (?P<member>\w+);$")
MANY = re.compile(r"^\s+(?:::)?std::vector<SavedVariable> (?P<member>\w+);$")
END = re.compile(r"^\};$")

HEAD = """// Written by runtime/gen_saved_slots.py from torch/csrc/autograd/generated/Functions.h. Do not edit.
#include <torch/csrc/autograd/generated/Functions.h>

#include <typeindex>
#include <unordered_map>

#include "runtime/saved_slots.h"

namespace recals {
namespace {

namespace generated = torch::autograd::generated;
using torch::autograd::Node;
using torch::autograd::SavedVariable;

"""

VISITOR = """void visit_{name}(Node& node, const SlotVisitor& visit) {{
  auto& self = static_cast<generated::{name}&>(node);
{body}}}
"""

TAIL = """}} // namespace

const std::unordered_map<std::type_index, VisitSlots>& saved_slot_table() {{
  static const std::unordered_map<std::type_index, VisitSlots> table = {{
{rows}  }};
  return table;
}}

}} // namespace recals
"""


def parse(text: str) -> dict[str, list[tuple[str, bool]]]:
    """Node type -> its saved members, each with whether it is a list."""
    nodes: dict[str, list[tuple[str, bool]]] = {}
    current: str | None = None
    for line in text.splitlines():
        if start := STRUCT.match(line):
            current = start["name"]
            nodes[current] = []
        elif END.match(line):
            current = None
        elif current is not None:
            if one := ONE.match(line):
                nodes[current].append((one["member"], False))
            elif many := MANY.match(line):
                nodes[current].append((many["member"], True))
            elif re.match(r"^\s+\S*SavedVariable\b.*;$", line):
                raise SystemExit(f"gen_saved_slots: {current} has a saved member of unknown form: {line.strip()}")
    return nodes


def render(nodes: dict[str, list[tuple[str, bool]]]) -> str:
    out = [HEAD]
    rows = []
    for name, members in nodes.items():
        if not members:
            # Known to save nothing: told apart from an unknown node, which may hold anything.
            rows.append(f"      {{typeid(generated::{name}), nullptr}},\n")
            continue
        body = "".join(
            f'  for (auto& saved : self.{member}) visit(saved, "{member}");\n'
            if many
            else f'  visit(self.{member}, "{member}");\n'
            for member, many in members
        )
        out.append(VISITOR.format(name=name, body=body))
        rows.append(f"      {{typeid(generated::{name}), &visit_{name}}},\n")
    out.append(TAIL.format(rows="".join(rows)))
    return "".join(out)


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    nodes = parse(Path(sys.argv[1]).read_text())
    if len(nodes) < 400:
        raise SystemExit(f"gen_saved_slots: only {len(nodes)} node types found in {sys.argv[1]}; has its form changed?")
    Path(sys.argv[2]).write_text(render(nodes))


if __name__ == "__main__":
    main()
