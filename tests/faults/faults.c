/* A library to preload: at the n-th system call that changes a file the process gets a signal, or the call fails.

   Loaded with LD_PRELOAD; a program arms it by fault_arm() and asks fault_count() how many calls it saw. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_int armed;
static atomic_long count;
static long wanted;
static int action;     /* a signal, or the negative of an errno */
static int persistent; /* whether every later call that needs room fails, too, as on a full disk */

void fault_arm(long n, int what, int stays) {
    wanted = n;
    action = what;
    persistent = stays;
    atomic_store(&count, 0);
    atomic_store(&armed, 1);
}

long fault_count(void) {
    atomic_store(&armed, 0);
    return atomic_load(&count);
}

/* Return whether the call that is about to be made has to fail; errno says how. */
static int met_by(int needs_room) {
    if (!atomic_load(&armed)) return 0;
    long number = atomic_fetch_add(&count, 1) + 1;
    if (wanted <= 0 || number < wanted) return 0;
    if (number > wanted && !(persistent && needs_room)) return 0;
    if (action > 0) {
        kill(getpid(), action);
        return 0;
    }
    errno = -action;
    return 1;
}

static int met(void) { return met_by(1); }
static int met_freeing(void) { return met_by(0); }

static int regular(int fd) {
    struct stat what;
    return atomic_load(&armed) && fstat(fd, &what) == 0 && S_ISREG(what.st_mode);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPEN(symbol)                                                            \
    int symbol(const char *path, int flags, ...) {                              \
        REAL(int, #symbol, const char *, int, ...);                             \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                           \
        if ((flags & (O_CREAT | O_TRUNC)) && met()) return -1;                  \
        return real(path, flags, mode);                                         \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(symbol)                                                          \
    int symbol(int folder, const char *path, int flags, ...) {                  \
        REAL(int, #symbol, int, const char *, int, ...);                        \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                           \
        if ((flags & (O_CREAT | O_TRUNC)) && met()) return -1;                  \
        return real(folder, path, flags, mode);                                 \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    return regular(fd) && met() ? -1 : real(fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec *parts, int number) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    return regular(fd) && met() ? -1 : real(fd, parts, number);
}

#define PWRITE(symbol)                                                          \
    ssize_t symbol(int fd, const void *data, size_t bytes, off_t at) {          \
        REAL(ssize_t, #symbol, int, const void *, size_t, off_t);               \
        return regular(fd) && met() ? -1 : real(fd, data, bytes, at);           \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define ONE(symbol, type, fails)                                                \
    int symbol(type a) {                                                        \
        REAL(int, #symbol, type);                                               \
        return fails() ? -1 : real(a);                                          \
    }
ONE(unlink, const char *, met_freeing)
ONE(rmdir, const char *, met_freeing)
ONE(fsync, int, met)
ONE(fdatasync, int, met)

#define TWO(symbol, first, second)                                              \
    int symbol(first a, second b) {                                             \
        REAL(int, #symbol, first, second);                                      \
        return met() ? -1 : real(a, b);                                         \
    }
TWO(rename, const char *, const char *)
TWO(link, const char *, const char *)
TWO(mkdir, const char *, mode_t)
TWO(ftruncate, int, off_t)
TWO(ftruncate64, int, off_t)

int unlinkat(int folder, const char *path, int flags) {
    REAL(int, "unlinkat", int, const char *, int);
    return met_freeing() ? -1 : real(folder, path, flags);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(int, "mkdirat", int, const char *, mode_t);
    return met() ? -1 : real(folder, path, mode);
}

int renameat(int from, const char *old, int to, const char *new) {
    REAL(int, "renameat", int, const char *, int, const char *);
    return met() ? -1 : real(from, old, to, new);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    REAL(int, "renameat2", int, const char *, int, const char *, unsigned);
    return met() ? -1 : real(from, old, to, new, flags);
}

int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(int, "linkat", int, const char *, int, const char *, int);
    return met() ? -1 : real(from, old, to, new, flags);
}
