# RUN: %recals-opt %s --input='f32[8]+grad' --passes=' graph , verify{ stage = flat } ,torch-cse' | %FileCheck %s
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='graph,' > %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes=',graph' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='graph,,sizes' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='grahp' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{stage}' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{stage=flat' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{stage=flat}x' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{stage=no}' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='graph{a=1}' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{stage=flat,stage=flat}' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='graph}' >> %t.out
# RUN: %exit %recals-opt %s --input='f32[8]+grad' --passes='verify{a{b}}' >> %t.out
# RUN: %FileCheck %s --check-prefix=WRONG < %t.out
# Pipelines as text, and what is none.

def forward(self, x):
    return torch.tanh(x) * torch.tanh(x)

# CHECK: aten::tanh(
# CHECK-NOT: aten::tanh(

# WRONG: the pipeline 'graph,' has an empty place at character 7
# WRONG-NEXT: exit 2
# WRONG-NEXT: the pipeline ',graph' has an empty place at character 1
# WRONG-NEXT: exit 2
# WRONG-NEXT: the pipeline 'graph,,sizes' has an empty place at character 7
# WRONG-NEXT: exit 2
# WRONG-NEXT: there is no pass 'grahp'; there are graph, sizes, plan, boundaries, lower,
# WRONG-NEXT: exit 2
# WRONG-NEXT: 'stage' is no option of the pass 'verify': write name=value
# WRONG-NEXT: exit 2
# WRONG-NEXT: the options of 'verify' do not end: a '}' is missing
# WRONG-NEXT: exit 2
# WRONG-NEXT: after the options of 'verify' a ',' is expected
# WRONG-NEXT: exit 2
# WRONG-NEXT: verify{stage=no}: a stage is flat, boundaries or lowered
# WRONG-NEXT: exit 2
# WRONG-NEXT: the pass 'graph' has no option 'a'
# WRONG-NEXT: exit 2
# WRONG-NEXT: the option 'stage' of the pass 'verify' is given twice
# WRONG-NEXT: exit 2
# WRONG-NEXT: the pipeline 'graph}' has a '}' without a '{'
# WRONG-NEXT: exit 2
# WRONG-NEXT: the options of 'verify' do not end: a '}' is missing
# WRONG-NEXT: exit 2
