// NVML of a machine with GPUs, without either: built as libnvidia-ml.so.1, for LD_LIBRARY_PATH. What its GPUs tell
// stands in the folder that FAKE_NVML names:
//
//   gpus              how many there are
//   events            a queue: whoever opens it for writing and writes "GPU XID\n" lines has them told as events
//   GPU.ecc, GPU.remap_failed, GPU.slowed    a number that is answered; without the file the call is not supported
//   GPU.lost          while it is there all calls about it say so, and so does waiting for events of several with it
//   deaf              while it is there waiting for events fails
//   hang              while it is there a call that waits for events never returns
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kSuccess = 0, kNotSupported = 3, kTimeout = 10, kLost = 15, kUnknown = 999, kXidCritical = 8, kMostGpus = 16 };

typedef struct {
  void* device;
  unsigned long long type, data;
  unsigned int gpu_instance, compute_instance;
} Event;

static char devices[kMostGpus];  // a handle is the address of one
static int is_registered[kMostGpus];
static FILE* events;

static const char* PathOf(const char* name) {
  static char path[4096];
  const char* folder = getenv("FAKE_NVML");
  snprintf(path, sizeof path, "%s/%s", folder == NULL ? "/nowhere" : folder, name);
  return path;
}

static int Number(const char* name, long long* number) {
  FILE* file = fopen(PathOf(name), "re");
  if (file == NULL) return kNotSupported;
  const int read = fscanf(file, "%lld", number);
  fclose(file);
  return read == 1 ? kSuccess : kNotSupported;
}

static int IsLost(int gpu) {
  char name[64];
  snprintf(name, sizeof name, "%d.lost", gpu);
  return access(PathOf(name), F_OK) == 0;
}

static int Of(const void* device, const char* what, long long* number) {
  char name[64];
  if (IsLost((int)((const char*)device - devices))) return kLost;
  snprintf(name, sizeof name, "%d.%s", (int)((const char*)device - devices), what);
  return Number(name, number);
}

int nvmlInit_v2(void) {
  const int queue = open(PathOf("events"), O_RDWR | O_CLOEXEC);  // for writing, too: it never ends
  if (queue >= 0) events = fdopen(queue, "r");
  return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned int* count) {
  long long gpus = 0;
  Number("gpus", &gpus);
  *count = (unsigned int)gpus;
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  *device = &devices[index % kMostGpus];
  return kSuccess;
}

int nvmlEventSetCreate(void** set) {
  *set = devices;
  memset(is_registered, 0, sizeof is_registered);
  return events == NULL ? kNotSupported : kSuccess;
}

// As a GPU without ECC, which has no events of it.
int nvmlDeviceRegisterEvents(void* device, unsigned long long types, void* set) {
  (void)set;
  const int gpu = (int)((char*)device - devices);
  if (IsLost(gpu)) return kLost;
  if (types != kXidCritical) return kNotSupported;
  is_registered[gpu] = 1;
  return kSuccess;
}

int nvmlEventSetFree(void* set) {
  (void)set;
  return kSuccess;
}

#ifndef WITHOUT_WAIT
int nvmlEventSetWait_v2(void* set, Event* event, unsigned int limit_ms) {
  (void)set;
  while (access(PathOf("hang"), F_OK) == 0) pause();
  if (access(PathOf("deaf"), F_OK) == 0) return kUnknown;
  for (int gpu = 0; gpu < kMostGpus; ++gpu) {
    if (is_registered[gpu] && IsLost(gpu)) return kLost;
  }
  struct pollfd queue = {fileno(events), POLLIN, 0};
  if (poll(&queue, 1, (int)limit_ms) != 1) return kTimeout;
  char line[64];
  size_t length = 0;
  while (length + 1 < sizeof line && read(queue.fd, line + length, 1) == 1 && line[length] != '\n') ++length;
  line[length] = '\0';
  int gpu = 0;
  memset(event, 0, sizeof *event);
  if (sscanf(line, "%d %llu", &gpu, &event->data) != 2) return kTimeout;
  event->device = &devices[gpu % kMostGpus];
  event->type = kXidCritical;
  return kSuccess;
}
#endif

int nvmlDeviceGetTotalEccErrors(void* device, int kind, int since, unsigned long long* count) {
  (void)since;
  long long number = 0;
  const int code = Of(device, "ecc", &number);
  *count = kind == 1 ? (unsigned long long)number : 0;
  return code;
}

int nvmlDeviceGetRemappedRows(void* device, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  long long number = 0;
  const int code = Of(device, "remap_failed", &number);
  *corrected = *uncorrected = *pending = 0;
  *failed = (unsigned)number;
  return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  long long number = 0;
  const int code = Of(device, "slowed", &number);
  *reasons = (unsigned long long)number;
  return code;
}
