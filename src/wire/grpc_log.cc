#include "wire/grpc_log.h"

#include <grpc/support/log.h>

namespace phalanx::wire {

void SilenceGrpc() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace phalanx::wire
