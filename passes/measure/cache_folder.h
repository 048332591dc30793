#pragma once

/// Where files lie that are known from one process to the next.

#include <string>

namespace recals {

/// The user's cache folder for Recals: "recals" in $XDG_CACHE_HOME, else in ~/.cache; "" if neither that nor HOME is set.
/// It need not be there yet.
std::string cache_folder();

} // namespace recals
