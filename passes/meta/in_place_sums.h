#pragma once

namespace recals {

/// Note [Sums in place]
/// The autograd engine adds a gradient to another one in place if nobody else holds that one (Note [Sums of gradients] of
/// passes/sizes/recorder.cpp), and composite attention its mask to the scores. On what torch takes for a subclass of
/// tensors, meta tensors among them, both make a tensor of the sum instead, which the device does not have. While an
/// InPlaceSums lives, the result of an add on meta tensors in this thread shares the storage of the first operand;
/// autograd sees an add.
class InPlaceSums {
 public:
  InPlaceSums();
  ~InPlaceSums();
  InPlaceSums(const InPlaceSums&) = delete;
  InPlaceSums& operator=(const InPlaceSums&) = delete;

  /// Does one live in this thread?
  static bool wanted();

 private:
  const bool outer_;
};

} // namespace recals
