#pragma once

namespace recals {

/// Note [Sums in place]
/// Composite attention adds its mask to the scores in place. On what torch takes for a subclass of tensors, meta tensors
/// among them, it makes a tensor of the sum instead, which the device does not have. While an InPlaceSums lives, the
/// result of an add on meta tensors in this thread shares the storage of the first operand; autograd sees an add.
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
