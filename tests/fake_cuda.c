// A CUDA driver, or a library that tells of devices, without either: built as libcuda.so.1 and as libnvidia-ml.so.1,
// for LD_LIBRARY_PATH. Each call adds a line to the file that FAKE_CUDA_LOG names: what was called, and what
// CUDA_VISIBLE_DEVICES said then. (Torch's libraries load the driver when they are imported, and ask it nothing.) No
// device is ever there.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { kNotInitialized = 3, kNoDevice = 100 };

static void Note(const char *what) {
  const char *path = getenv("FAKE_CUDA_LOG");
  const char *visible = getenv("CUDA_VISIBLE_DEVICES");
  if (path == NULL) return;
  char line[200];
  const int length = snprintf(line, sizeof line, "%s %s\n", what, visible == NULL ? "unset" : visible);
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || write(file, line, (size_t)length) != length) abort();
  close(file);
}

#define ANSWER(name, code) \
  int name(void) {         \
    Note(#name);           \
    return code;           \
  }

ANSWER(cuInit, kNoDevice)
ANSWER(cuDriverGetVersion, kNoDevice)
ANSWER(cuDeviceGetCount, kNoDevice)
ANSWER(cuGetProcAddress_v2, kNotInitialized)
ANSWER(nvmlInit, kNotInitialized)
ANSWER(nvmlInit_v2, kNotInitialized)
ANSWER(nvmlInitWithFlags, kNotInitialized)
