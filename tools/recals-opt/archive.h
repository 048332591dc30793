#pragma once

/// Is a file a whole TorchScript archive? Torch's reader compares no checksums, so it would take damaged weights as they
/// are, or fail deep inside; here every record is compared with its checksum first.

#include <string_view>

namespace recals::opt {

/// Does it begin as a zip archive does?
bool looks_like_archive(std::string_view bytes);

/// Throws BadInput that says what is damaged, or that the archive holds no TorchScript module.
void check_archive(std::string_view bytes);

} // namespace recals::opt
