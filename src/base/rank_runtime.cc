// What the compiler asks a C++ runtime for, in the libraries that ranks load, and there alone: they share a process
// with torch's own libstdc++, of whatever version, and bring none along. Memory comes from malloc; where the standard
// library would throw, there is nobody to catch, and the process ends with a line that says why.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

[[noreturn]] void End(const char* what) {
  static constexpr char kWho[] = "phalanx: ";
  [[maybe_unused]] ssize_t n = write(STDERR_FILENO, kWho, sizeof kWho - 1);
  n = write(STDERR_FILENO, what, std::strlen(what));
  n = write(STDERR_FILENO, "\n", 1);
  std::abort();
}

}  // namespace

void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) End("out of memory");
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

// The names are the library's, of functions it leaves to its binary part.
namespace std {  // NOLINTBEGIN(bugprone-reserved-identifier)

void __throw_bad_alloc() { End("out of memory"); }
void __throw_bad_array_new_length() { End("out of memory"); }
void __throw_length_error(const char* what) { End(what); }
void __throw_logic_error(const char* what) { End(what); }
void __throw_out_of_range(const char* what) { End(what); }
void __throw_out_of_range_fmt(const char* what, ...) { End(what); }

// NOLINTEND(bugprone-reserved-identifier)
}  // namespace std
