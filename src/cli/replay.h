// What `phalanx replay` prints: a recorded log of a master or an agent, run anew, and whether all decisions are the
// same. Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx::cli {

struct ReplayView {
  bool json = false;  // an object a line
  bool all = false;   // also events without a decision, and long texts whole
};

// `log` is the whole file; `print` gets text with its newlines, as it comes. True: the decisions are the same. DataLoss
// where the log is damaged: what stands before has been printed. Other errors are those of LogReader::Open.
StatusOr<bool> ReplayLog(std::string_view log, const ReplayView& view,
                         const std::function<void(const std::string&)>& print);

}  // namespace phalanx::cli
