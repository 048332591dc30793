"""Writes a module with submodules for the goldens: module_of_layers.py OUT.pt"""

import sys

import torch
from torch import nn

layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.GELU(), nn.Dropout(0.5))]
torch.jit.script(nn.Sequential(*layers, nn.Linear(128, 2))).save(sys.argv[1])
