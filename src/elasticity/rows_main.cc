// Rows of requests (rows.h) from standard input, a line of answer each to standard output. For tests and comparisons.
#include <cstdio>
#include <iostream>
#include <string>
#include <string_view>

#include "elasticity/rows.h"

namespace {

constexpr const char* kUsage =
    "usage: phalanx-elasticity-rows [--deepspeed-version 0.16.5|0.19.7] [--immutable] < rows > answers\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace phalanx::elasticity;
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
  bool is_immutable = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    const auto named = flag == "--deepspeed-version" && i + 1 < argc ? BehaviourNamed(argv[i + 1]) : std::nullopt;
    if (named) {
      behaviour = *named;
      ++i;
    } else if (flag == "--immutable") {
      is_immutable = true;
    } else {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << (is_immutable ? AnswerImmutableRow(line) : AnswerRow(line, behaviour)) << '\n';
  }
  return std::cout.flush() ? 0 : 1;
}
