#pragma once

/// Note [Bytes of CUDA's caching allocator]
/// What torch.cuda.memory_allocated() counts are sizes of blocks (c10/cuda/CUDACachingAllocator.cpp: round_size,
/// get_allocation_size, should_split):
///   - Nothing is taken for 0 bytes; everything else is rounded up to a multiple of 512.
///   - Up to 1 MiB comes from segments of 2 MiB, less than 10 MiB from segments of 20 MiB; both are split to the size
///     that was asked for as long as enough is left (512 bytes of a small one, more than 1 MiB of a large one).
///   - From 10 MiB on a segment of its own is made, rounded up to 2 MiB; a rest of at most 1 MiB stays with the block.
///
/// Not counted: the rest of up to 1 MiB that the last block of a 20 MiB segment, or a block that is used again, may have;
/// memory that is reserved and not allocated; fragmentation; what PYTORCH_CUDA_ALLOC_CONF changes.

#include <cstdint>

namespace recals {

/// Bytes of the block that a storage of `bytes` gets from a fresh segment.
int64_t cuda_block_bytes(int64_t bytes);

/// Bytes that cuBLAS or cuDNN are taken to allocate within a call, unless the user says otherwise: the sum of
/// CUBLAS_WORKSPACE_CONFIG (":SIZE:COUNT", SIZE in KiB, repeated) as torch reads it, else 32 MiB, which is what torch gives
/// cuBLAS on Hopper and Blackwell (ATen/cuda/CublasHandlePool.cpp; others get 8.1 MiB). No workspace of a convolution is
/// known without the device. Throws c10::Error if the variable is set to something else.
int64_t default_workspace_margin();

} // namespace recals
