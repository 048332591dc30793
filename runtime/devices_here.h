#pragma once

#include <c10/core/Device.h>

#include "recals/export.h"

namespace recals {

/// How many devices of a kind there are, not only code for; 0 of a kind that this process has no code for.
RECALS_API c10::DeviceIndex devices_here(c10::DeviceType type);

} // namespace recals
