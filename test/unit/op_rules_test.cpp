/// What is told of an op without running it.

#include <gtest/gtest.h>

#include "runtime/op_rules.h"

namespace recals {
namespace {

TEST(OpRules, CollectivesAreToldByTheirNamespace) {
  for (const char* op :
       {"c10d::allreduce_",
        "c10d_functional::all_reduce",
        "_c10d_functional::wait_tensor",
        "_c10d_functional_autograd::all_to_all_single"}) {
    EXPECT_TRUE(communicates(op)) << op;
  }
  for (const char* op : {"aten::add", "c10d_of_a_user::send", "aten::c10d"}) {
    EXPECT_FALSE(communicates(op)) << op;
  }
}

} // namespace
} // namespace recals
