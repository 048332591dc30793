#pragma once

/// Meta kernels that LibTorch does not have without Python.

namespace recals {

/// Registers the missing ones, each only where none is registered. Called before every dry run; does its work once.
void register_missing_meta_kernels();

} // namespace recals
