// Bytes as text. Names of hosts and files, and what others have written, may be any bytes; a proto3 `string` and JSON
// take UTF-8 alone, and a message with anything else cannot be read by whom it is sent to. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace phalanx {

// The length of the well-formed character at the start of `text` (RFC 3629); 0 where there is none.
size_t Utf8Length(std::string_view text);

// With U+FFFD in the place of each byte that is of no character.
std::string ToUtf8(std::string_view bytes);

// The beginning of `text`, which is UTF-8, of at most `max_bytes`, without a part of a character at its end.
std::string_view CutUtf8(std::string_view text, size_t max_bytes);

}  // namespace phalanx
