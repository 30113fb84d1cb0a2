// What Python knows of characters. Pure.
#pragma once

#include <cstdint>

namespace phalanx::elasticity {

bool IsPrintable(uint32_t code_point);         // str.isprintable()
bool IsNumericCharacter(uint32_t code_point);  // str.isnumeric()
bool IsSpaceOutsideAscii(uint32_t code_point);
int DecimalDigit(uint32_t code_point);  // -1 where it is none

}  // namespace phalanx::elasticity
