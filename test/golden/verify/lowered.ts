# RUN: %exit %recals-opt %s --split-input-file --emit=code --passes='verify{stage=lowered}' | %FileCheck %s --implicit-check-not=part
# Each clause of the contract after passes/lower, broken, and a module that keeps it.

def recals_forward_plain(self, x):
    return torch.tanh(x)

def recals_forward_step(self, x):
    ops.recals.region("region_0")
    return [torch.tanh(x)]

def forward(self, x):
    return torch.tanh(x)

# CHECK: part 1: L1: recals::region at lowered.ts:[[#@LINE-6]] is left after lowering
# -----
def recals_forward_plain(self, x):
    return torch.tanh(x)

def recals_forward_step(self, x):
    return ops.recals.checkpoint(self, "recals_forward_region_0", [x])

def forward(self, x):
    return torch.tanh(x)

# CHECK: part 2: L2: recals::checkpoint at lowered.ts:[[#@LINE-5]] names no method of the module
# -----
def recals_forward_plain(self, x):
    return torch.tanh(x)

def forward(self, x):
    return torch.tanh(x)

# CHECK: part 3: L3: the rewritten module has no method recals_forward_step
# -----
def recals_forward_plain(self, x):
    return torch.tanh(x)

def recals_forward_region_0(self, x):
    return [torch.tanh(x)]

def recals_forward_step(self, x):
    return ops.recals.checkpoint(self, "recals_forward_region_0", [x])

def forward(self, x):
    return torch.tanh(x)

# CHECK: def recals_forward_plain(
# CHECK: def recals_forward_region_0(
# CHECK: def recals_forward_step(
# CHECK: def forward(
# CHECK: exit 1
