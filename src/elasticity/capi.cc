#include "elasticity/capi.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "elasticity/rows.h"

uint32_t phx_elasticity_abi_version() { return 1; }

size_t phx_elasticity_answer(const char* request, size_t request_bytes, char* answer, size_t answer_size) {
  const std::string text = phalanx::elasticity::AnswerRequest(std::string_view(request, request_bytes));
  if (answer != nullptr && answer_size > 0) {
    const size_t written = std::min(text.size(), answer_size - 1);
    std::memcpy(answer, text.data(), written);
    answer[written] = '\0';
  }
  return text.size();
}
