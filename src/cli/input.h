// What commands are given to read: files, and standard input.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx::cli {

// The whole file; of standard input, where `path` is "-". OutOfRange where it has more bytes.
StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes);

// Writes to standard output what `answer` makes of each line of standard input, with a newline. Whoever asks line by
// line has an answer before the next question: what was read is answered before more is. OutOfRange where a line has
// more bytes.
Status AnswerLines(const std::function<std::string(std::string_view line)>& answer, size_t max_line_bytes);

}  // namespace phalanx::cli
