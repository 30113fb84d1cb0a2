// What a failed job tells: one box for people, one error file for the launcher above us. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// What an error.json (docs/output.md, torch's @record format) says; empty strings where it is absent or garbage.
struct RecordedError {
  std::string message;
  std::string traceback;
};
RecordedError ParseErrorJson(const std::string& json);

// The box, several lines, ending with a newline. `script` is what the user launched.
std::string FailureBox(const v1::Finish& finish, const std::string& script);

// Whether the job ended since its ranks made no step for too long (--hang-timeout): no worker has failed first then.
bool IsHang(const v1::Finish& finish);
// The same box of such an end. `ranks` are this node's, as they were then; `rank_base` is the first one's rank.
std::string HangBox(const v1::Finish& finish, const std::string& script, uint32_t rank_base,
                    const std::vector<v1::RankStatus>& ranks);

// What torchrun's agent leaves in its own TORCHELASTIC_ERROR_FILE: the root error with "errorCode" added, or one made
// from the exit status where the worker recorded none.
std::string OwnErrorJson(const v1::Finish& finish);

}  // namespace phalanx::agent
