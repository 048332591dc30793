# RUN: %recals-opt --help | %FileCheck %s
# RUN: %recals-opt --version | %FileCheck %s --check-prefix=VERSION
# RUN: %recals-opt --list-passes | %FileCheck %s --check-prefix=PASSES
# RUN: %exit %recals-opt > %t.out
# RUN: %exit %recals-opt --nonsense x >> %t.out
# RUN: %exit %recals-opt x --emit=nonsense >> %t.out
# RUN: %exit %recals-opt x --check --restore >> %t.out
# RUN: %exit %recals-opt x --check --emit=ir >> %t.out
# RUN: %FileCheck %s --check-prefix=USAGE < %t.out

# CHECK: Usage: recals-opt [OPTIONS] [file]
# CHECK: --input [NAME=]SPEC ...
# CHECK: --budget [DEVICE=]LIMIT ...
# CHECK: --target-device DEVICE
# CHECK: --no-preserve-rng-state
# CHECK: --gpu-devices DEVICES
# CHECK: --on-mismatch WHAT:{warn,error,plain}
# CHECK: -o,--output FILE
# CHECK: --emit KIND:{ir,code,pt,plan,report,report-json,pareto,pareto-json,dot,trace}
# CHECK: --passes PASSES
# CHECK: --split-input-file
# CHECK: --check
# CHECK: --restore
# CHECK: --explain VALUE
# CHECK: SPEC is a value as recals prints it: f32[8,3,224,224],
# CHECK: Exit status: 0 done, 1 bad input, 2 usage, 3 the budget cannot be met.

# VERSION: recals-opt {{[0-9]+\.[0-9]+\.[0-9]+}}, torch {{[0-9]+\.[0-9]+\.[0-9]+}}

# PASSES: {{^}}graph {{[a-z]}}
# PASSES-NEXT: {{^}}sizes
# PASSES-NEXT: {{^}}plan
# PASSES-NEXT: {{^}}boundaries
# PASSES-NEXT: {{^}}lower
# PASSES: {{^}}verify
# PASSES-NEXT: {stage=...}

# USAGE: recals-opt: a FILE is expected (see recals-opt --help)
# USAGE-NEXT: exit 2
# USAGE-NEXT: recals-opt: {{.*}}--nonsense (see recals-opt --help)
# USAGE-NEXT: exit 2
# USAGE-NEXT: recals-opt: --emit: nonsense not in {ir,code,pt,plan,report,report-json,pareto,pareto-json,dot,trace} (see recals-opt --help)
# USAGE-NEXT: exit 2
# USAGE-NEXT: recals-opt: --check and --restore exclude each other (see recals-opt --help)
# USAGE-NEXT: exit 2
# USAGE-NEXT: recals-opt: --check prints text of its own, so it excludes --emit (see recals-opt --help)
# USAGE-NEXT: exit 2
