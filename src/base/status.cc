#include "base/status.h"

#include <fmt/format.h>

namespace phalanx {

Status ErrnoStatus(int error_number, std::string_view what) {
  return absl::ErrnoToStatus(error_number, std::string(what));
}

Status WithContext(const Status& status, std::string_view context) {
  if (status.ok()) return status;
  return Status(status.code(), fmt::format("{}: {}", context, Message(status)));
}

std::string Message(const Status& status) { return std::string(status.message()); }

}  // namespace phalanx
