#pragma once

/// Meta kernels that LibTorch does not have without Python.

namespace recals {

/// Registers the missing ones, each only where none is registered: torch's Python package brings kernels of its own.
/// Called before anything runs on meta tensors; does its work once.
void register_missing_meta_kernels();

} // namespace recals
