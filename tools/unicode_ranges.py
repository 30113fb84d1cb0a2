"""Writes src/elasticity/unicode_ranges.cc: what Python knows of characters and we need for its str methods.

python tools/unicode_ranges.py > src/elasticity/unicode_ranges.cc
"""

import sys
import unicodedata

PER_LINE = 5


def ranges(holds):
    """[first, last] of the runs of characters outside ASCII for which `holds`."""
    found = []
    for code in range(0x80, sys.maxunicode + 1):
        if not holds(chr(code)):
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def table(name, found):
    cells = [f"{{0x{first:X}, 0x{last:X}}}," for first, last in found]
    lines = ["    " + " ".join(cells[at : at + PER_LINE]) for at in range(0, len(cells), PER_LINE)]
    return "\n".join([f"constexpr Range {name}[] = {{", *lines, "};"])


def main():
    print("// Made by tools/unicode_ranges.py, of Unicode " + unicodedata.unidata_version + ".")
    print('#include "elasticity/unicode_ranges.h"\n')
    print("#include <algorithm>\n#include <iterator>\n\nnamespace phalanx::elasticity {\nnamespace {\n")
    print("struct Range {\n  uint32_t first;\n  uint32_t last;\n};\n\n// clang-format off")
    print(table("kNotPrintable", ranges(lambda c: not c.isprintable())))
    print(table("kNumeric", ranges(str.isnumeric)))
    print(table("kSpace", ranges(str.isspace)))
    # Each run of decimal digits is one or more times 0 to 9.
    print(table("kDecimal", ranges(str.isdecimal)))
    print("""// clang-format on

template <size_t n>
const Range* Holding(const Range (&ranges)[n], uint32_t code_point) {
  const Range* range = std::lower_bound(std::begin(ranges), std::end(ranges), code_point,
                                        [](const Range& r, uint32_t code) { return r.last < code; });
  return range != std::end(ranges) && range->first <= code_point ? range : nullptr;
}

}  // namespace

bool IsPrintable(uint32_t code_point) {
  if (code_point < 0x80) return code_point >= ' ' && code_point != 0x7F;
  return Holding(kNotPrintable, code_point) == nullptr;
}

bool IsNumericCharacter(uint32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9';
  return Holding(kNumeric, code_point) != nullptr;
}

bool IsSpaceOutsideAscii(uint32_t code_point) { return Holding(kSpace, code_point) != nullptr; }

int DecimalDigit(uint32_t code_point) {
  if (code_point < 0x80) return code_point >= '0' && code_point <= '9' ? static_cast<int>(code_point - '0') : -1;
  const Range* range = Holding(kDecimal, code_point);
  return range == nullptr ? -1 : static_cast<int>((code_point - range->first) % 10);
}

}  // namespace phalanx::elasticity""")


if __name__ == "__main__":
    main()
