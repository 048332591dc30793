#pragma once

/// Is a file a whole TorchScript archive? Torch's reader compares no checksums, so it would take damaged weights as they
/// are, or fail deep inside; here every record is compared with its checksum first.

#include <string_view>
#include <vector>

#include <c10/core/Device.h>

namespace recals::opt {

/// Does it begin as a zip archive does?
bool looks_like_archive(std::string_view bytes);

/// Throws BadInput that says what is damaged, or that the archive holds no TorchScript module. Returns the devices that its
/// tensors are on, as far as they are CPU or CUDA, each once.
std::vector<c10::Device> check_archive(std::string_view bytes);

} // namespace recals::opt
