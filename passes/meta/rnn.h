#pragma once

/// Sizes in oneDNN's LSTM that several places need.

#include <cstdint>

namespace recals {

/// Elements of a padded row of `floats`.
int64_t lstm_row(int64_t floats);

/// Bytes of the four gates of all steps.
int64_t lstm_gates_bytes(int64_t steps, int64_t batch, int64_t hidden);

} // namespace recals
