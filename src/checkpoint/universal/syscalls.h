// What the file system is asked for here. Errors name the path and the call.
#pragma once

#include <string>
#include <string_view>

#include "base/fd.h"
#include "checkpoint/universal/result.h"

namespace phalanx::universal {

Error CallFailed(const std::string& path, const char* call, int error_number);

Result<Fd> OpenFolder(const std::string& path);

Result<Done> WriteFully(int fd, const std::string& path, std::string_view bytes);

// On the disk, all of it. File systems that cannot do that with a folder are taken as they are.
Result<Done> Sync(int fd, const std::string& path);

}  // namespace phalanx::universal
