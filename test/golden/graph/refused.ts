# RUN: %not %recals-opt %s --split-input-file --input='f32[4]+grad' 2>&1 | %FileCheck %s --implicit-check-not=part
# What depends on data is refused, with the op and its line; the twin that shapes decide is not.

def forward(self, x):
    if bool(x.sum() > 0):
        x = x * 2
    return x

# CHECK: part 1: aten::Bool at {{.*}}:{{[0-9]+}} depends on the values in a tensor
# -----
def forward(self, x):
    return x * float(x.max())

# CHECK: part 2: aten::Float at {{.*}}:{{[0-9]+}} depends on the values in a tensor
# -----
def forward(self, x):
    return 3

# CHECK: part 3: 'forward' returns no tensor
# -----
def forward(self, x):
    if x.size(0) > 2:
        x = x * 2
    return x

# CHECK: graph(%self : __torch__.Module,
# CHECK: aten::mul
