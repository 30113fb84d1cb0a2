// One line an event on stderr, for people and for grep: time, level, event, key=value.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace phalanx {

enum class LogLevel { kInfo, kWarning, kError };

using LogFields = std::vector<std::pair<std::string, std::string>>;

// Safe from any thread; a line is written at once and whole. Values with blanks, quotes or control characters are
// quoted.
void Log(LogLevel level, const std::string& event, const LogFields& fields);

// "event key=value key="two words"".
std::string LogText(const std::string& event, const LogFields& fields);

}  // namespace phalanx
