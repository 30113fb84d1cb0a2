// An error.json as a rank may have left it: it is shown and handed on, whatever it is.
#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/report/failure_box.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  phalanx::v1::Finish finish;
  finish.mutable_first_cause()->mutable_exited()->set_error_json(data, size);
  [[maybe_unused]] const std::string box = FailureBox(finish, "train.py");
  [[maybe_unused]] const std::string own = OwnErrorJson(finish);
  return 0;
}
