/* Preloaded: the wall clock of a process is off by as many seconds as the file SHIFTED_CLOCK holds, an int64_t, and
   jumps when that changes. The monotonic clock is left alone. As in a kernel whose clock is set, a wait until a time of
   the wall clock ends when the clock says so: it is cut into slices, between which the file is looked at. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 20000000
#define SECOND_NS 1000000000

typedef long (*syscall_fn)(long, ...);

static const volatile int64_t *offset_s;

static long real_syscall(long number, long a, long b, long c, long d, long e, long f) {
  static syscall_fn next;
  if (next == NULL) next = (syscall_fn)dlsym(RTLD_NEXT, "syscall");
  return next(number, a, b, c, d, e, f);
}

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("SHIFTED_CLOCK");
  int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) abort(); /* a test that shifts nothing would prove nothing */
  void *mapped = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped == MAP_FAILED) abort();
  offset_s = mapped;
}

static int64_t shift(void) { return offset_s == NULL ? 0 : *offset_s; }

int clock_gettime(clockid_t id, struct timespec *now) {
  int result = (int)real_syscall(SYS_clock_gettime, id, (long)now, 0, 0, 0, 0);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec;
  now->tv_usec = t.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (out != NULL) *out = t.tv_sec;
  return t.tv_sec;
}

/* When the next slice of a wait until `end` is over, on the kernel's clock; 0 where the shifted clock has come to
   `end`. */
static int slice_end(const struct timespec *end, struct timespec *slice) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  __int128 left = (__int128)(end->tv_sec - now.tv_sec) * SECOND_NS + (end->tv_nsec - now.tv_nsec);
  if (left <= 0) return 0;
  real_syscall(SYS_clock_gettime, CLOCK_REALTIME, (long)slice, 0, 0, 0, 0);
  slice->tv_nsec += left < SLICE_NS ? (long)left : SLICE_NS;
  slice->tv_sec += slice->tv_nsec / SECOND_NS;
  slice->tv_nsec %= SECOND_NS;
  return 1;
}

long syscall(long number, ...) {
  va_list list;
  long a[6];
  va_start(list, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  const long wait = FUTEX_WAIT_BITSET | FUTEX_CLOCK_REALTIME;
  if (number != SYS_futex || (a[1] & ~FUTEX_PRIVATE_FLAG) != wait || a[3] == 0) {
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  struct timespec slice;
  while (slice_end((const struct timespec *)a[3], &slice)) {
    long result = real_syscall(number, a[0], a[1], a[2], (long)&slice, a[4], a[5]);
    if (result == 0 || errno != ETIMEDOUT) return result;
  }
  errno = ETIMEDOUT;
  return -1;
}

/* A condition variable may have been told to go by the monotonic clock, which counts from the start of the machine. */
static int is_monotonic(const struct timespec *end) { return end->tv_sec < 500000000; }

typedef int (*cond_fn)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict end) {
  static cond_fn next;
  if (next == NULL) next = (cond_fn)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  if (is_monotonic(end)) return next(cond, mutex, end);
  struct timespec slice;
  while (slice_end(end, &slice)) {
    int result = next(cond, mutex, &slice);
    if (result != ETIMEDOUT) return result;
  }
  return ETIMEDOUT;
}
