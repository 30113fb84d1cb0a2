/* Preloaded: a disk that fails. FAULTY_DISK is CALL:N:WHAT, for calls that concern what lies below FAULTY_DISK_DIR:
   the N-th CALL (open, write, pwrite, fsync, rename, ftruncate, fallocate, mkdir, unlink, rmdir, or any of them)
   fails with the errno of that name; SHORT: takes half of it; DEAD: it and all calls after it fail with EIO; KILL:
   the process dies before it. When that happens, one line on stderr says so. FAULTY_DISK=no-ring: the kernel refuses
   io_uring. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
  const char *name;
  int number;
} errors[] = {{"EIO", EIO},     {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EROFS", EROFS},           {"EINTR", EINTR},
              {"EINVAL", EINVAL}, {"ESTALE", ESTALE}, {"EOPNOTSUPP", EOPNOTSUPP}};

static const char *folder;
static char fault_call[32], fault_what[32];
static long fault_n;
static atomic_long calls;

static void refuse_ring(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) abort();
}

__attribute__((constructor)) static void read_fault(void) {
  const char *fault = getenv("FAULTY_DISK");
  folder = getenv("FAULTY_DISK_DIR");
  if (fault == NULL || folder == NULL) abort(); /* a test in which nothing fails would prove nothing */
  if (strcmp(fault, "no-ring") == 0) {
    refuse_ring();
  } else if (sscanf(fault, "%31[^:]:%ld:%31s", fault_call, &fault_n, fault_what) != 3) {
    abort();
  }
}

static void tell(const char *call, const char *path) {
  char line[512];
  int n = snprintf(line, sizeof line, "faulty_disk: %s %s\n", call, path);
  syscall(SYS_write, 2, line, (size_t)n);
}

/* The errno that this call fails with, 0 where it works, -1 where it is short. */
static int verdict(const char *call, const char *path) {
  if (strncmp(path, folder, strlen(folder)) != 0) return 0;
  if (strcmp(fault_call, "any") != 0 && strcmp(fault_call, call) != 0) return 0;
  long n = atomic_fetch_add(&calls, 1) + 1;
  if (strcmp(fault_what, "DEAD") == 0 && n > fault_n) return EIO;
  if (n != fault_n) return 0;
  tell(call, path);
  if (strcmp(fault_what, "KILL") == 0) kill(getpid(), SIGKILL);
  if (strcmp(fault_what, "DEAD") == 0) return EIO;
  if (strcmp(fault_what, "SHORT") == 0) return -1;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i) {
    if (strcmp(errors[i].name, fault_what) == 0) return errors[i].number;
  }
  abort();
}

static int verdict_fd(const char *call, int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = '\0';
  return verdict(call, path);
}

/* The same function of the C library. */
#define NEXT(name)                    \
  static __typeof__(&name) next;      \
  if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define FAIL_IF(expression)     \
  do {                          \
    int failed = (expression);  \
    if (failed > 0) {           \
      errno = failed;           \
      return -1;                \
    }                           \
  } while (0)

int open(const char *path, int flags, ...) {
  NEXT(open);
  va_list list;
  va_start(list, flags);
  mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  FAIL_IF(verdict("open", path));
  return next(path, flags, mode);
}

ssize_t write(int fd, const void *data, size_t bytes) {
  NEXT(write);
  int found = verdict_fd("write", fd);
  FAIL_IF(found);
  return next(fd, data, found < 0 ? bytes / 2 : bytes);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
  NEXT(pwrite);
  int found = verdict_fd("pwrite", fd);
  FAIL_IF(found);
  return next(fd, data, found < 0 ? bytes / 2 : bytes, at);
}

int fsync(int fd) {
  NEXT(fsync);
  FAIL_IF(verdict_fd("fsync", fd));
  return next(fd);
}

int rename(const char *from, const char *to) {
  NEXT(rename);
  FAIL_IF(verdict("rename", to));
  return next(from, to);
}

int ftruncate(int fd, off_t bytes) {
  NEXT(ftruncate);
  FAIL_IF(verdict_fd("ftruncate", fd));
  return next(fd, bytes);
}

int fallocate(int fd, int mode, off_t at, off_t bytes) {
  NEXT(fallocate);
  FAIL_IF(verdict_fd("fallocate", fd));
  return next(fd, mode, at, bytes);
}

int mkdir(const char *path, mode_t mode) {
  NEXT(mkdir);
  FAIL_IF(verdict("mkdir", path));
  return next(path, mode);
}

int unlink(const char *path) {
  NEXT(unlink);
  FAIL_IF(verdict("unlink", path));
  return next(path);
}

int rmdir(const char *path) {
  NEXT(rmdir);
  FAIL_IF(verdict("rmdir", path));
  return next(path);
}
