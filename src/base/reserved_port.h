// A TCP port that is kept for a program that is to listen there later.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx {

class ReservedPort {
 public:
  ReservedPort() = default;

  // At `address` (textual IP): `wanted` where it is free, else any from `first` to `last`; 0, 0: any at all. Who
  // connects there is refused. The error is the system's about the last port that was tried.
  static StatusOr<ReservedPort> Take(const std::string& address, uint16_t wanted, uint16_t first, uint16_t last);

  // 0: none.
  uint16_t port() const { return port_; }
  // Others may have it from now on. port() stays.
  void Release() { socket_.Reset(); }

 private:
  Fd socket_;
  uint16_t port_ = 0;
};

}  // namespace phalanx
