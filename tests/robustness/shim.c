/* Lets one system call on the files below a directory fail. Preloaded by syscalls.py. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char below[4096];
static char armed[32];
static int number, code, from_then_on, count;

/* The call number `nth` of those named `call` fails with `error`, or all from then on. */
void shim_arm(const char *root, const char *call, int nth, int error, int sticky) {
    strncpy(below, root, sizeof below - 1);
    number = nth, code = error, from_then_on = sticky, count = 0;
    strncpy(armed, call, sizeof armed - 1);
}

/* Returns how many such calls there were since. */
int shim_disarm(void) {
    armed[0] = 0;
    return count;
}

static int fails(const char *call, const char *path) {
    if (!armed[0] || !path || strcmp(call, armed) || strncmp(path, below, strlen(below))) return 0;
    int mine = __sync_fetch_and_add(&count, 1);
    if (mine != number && !(from_then_on && mine > number)) return 0;
    errno = code;
    return 1;
}

static int fd_fails(const char *call, int fd) {
    char link[64], path[4096];
    int before = errno;
    if (!armed[0] || strcmp(call, armed)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    errno = before;
    if (size < 0) return 0;
    path[size] = 0;
    return fails(call, path);
}

#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = dlsym(RTLD_NEXT, name)

#define OPEN(symbol) \
    int symbol(const char *path, int flags, ...) { \
        REAL(int, #symbol, const char *, int, ...); \
        va_list args; \
        va_start(args, flags); \
        int mode = va_arg(args, int); \
        va_end(args); \
        return fails("open", path) ? -1 : real(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define ON_PATH(symbol, call, parameters, types, ...) \
    int symbol parameters { \
        REAL(int, #symbol, types); \
        return fails(call, path) ? -1 : real(__VA_ARGS__); \
    }
#define COMMA ,
ON_PATH(mkdir, "mkdir", (const char *path, mode_t mode), const char * COMMA mode_t, path, mode)
ON_PATH(unlink, "unlink", (const char *path), const char *, path)
ON_PATH(rename, "rename", (const char *path, const char *new), const char * COMMA const char *, path, new)
#define STAT(symbol, type) \
    ON_PATH(symbol, "stat", (const char *path, struct type *out), const char * COMMA struct type *, path, out)
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)

#define ON_FD(type, symbol, call, parameters, types, ...) \
    type symbol parameters { \
        REAL(type, #symbol, types); \
        return fd_fails(call, fd) ? -1 : real(__VA_ARGS__); \
    }
ON_FD(ssize_t, read, "read", (int fd, void *data, size_t size), int COMMA void * COMMA size_t, fd, data, size)
ON_FD(ssize_t, write, "write", (int fd, const void *data, size_t size), int COMMA const void * COMMA size_t, fd, data, size)
ON_FD(int, fsync, "fsync", (int fd), int, fd)
ON_FD(int, fdatasync, "fsync", (int fd), int, fd)
ON_FD(int, flock, "flock", (int fd, int how), int COMMA int, fd, how)
ON_FD(off64_t, lseek64, "lseek", (int fd, off64_t offset, int whence), int COMMA off64_t COMMA int, fd, offset, whence)
ON_FD(int, fstat, "fstat", (int fd, struct stat *out), int COMMA struct stat *, fd, out)
ON_FD(int, fstat64, "fstat", (int fd, struct stat64 *out), int COMMA struct stat64 *, fd, out)

DIR *opendir(const char *path) {
    REAL(DIR *, "opendir", const char *);
    return fails("opendir", path) ? NULL : real(path);
}
