// How Python writes a traceback, and torch before each of its lines. Pure.
#pragma once

#include <string_view>

namespace phalanx {

constexpr std::string_view kTracebackHeader = "Traceback (most recent call last):";

// Without torch's "[rank1]: " or the "[rank1]:" of an empty line, and without the end of the line.
std::string_view WithoutRank(std::string_view line);

}  // namespace phalanx
