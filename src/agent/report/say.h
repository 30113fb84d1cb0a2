// What phalanx-run itself says, for people or for programs (--log-format; docs/formats/log-lines.md). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "agent/flags/config.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// Who speaks.
struct Speaker {
  LogFormat format = LogFormat::kText;
  std::string job_id;
  std::string hostname;
};

enum class Level { kInfo, kWarning, kError };

// One line, ended by a newline: "phalanx-run: <text>", or an object.
std::string SayLine(const Speaker& speaker, Level level, std::string_view text, int64_t unix_ms);

// The failure box, or the same as one object. `script` is what the user launched.
std::string SayFailure(const Speaker& speaker, const v1::Finish& finish, const std::string& script, int64_t unix_ms);
// The same of a hang (HangBox).
std::string SayHang(const Speaker& speaker, const v1::Finish& finish, const std::string& script, uint32_t rank_base,
                    const std::vector<v1::RankStatus>& ranks, int64_t unix_ms);

}  // namespace phalanx::agent
