/* Records what a process does to the files below a directory: preloaded into it (LD_PRELOAD).
 *
 * Each call that changes a file, a name, or what is durable is made under one lock and written to a log with its
 * arguments. So the log has all calls of all threads, of every library, in the order in which they happened.
 * tests/storage/recorded_calls.py reads it. Environment:
 *
 *     RECORDED_BELOW  the directory, an absolute path
 *     RECORDED_TO     the log
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
#define REAL(name, result, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (!real)                                                                                     \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

struct head {
    uint8_t kind;
    uint8_t synced;
    uint16_t path, target;
    int32_t file;
    int64_t offset;
    uint64_t size;
} __attribute__((packed));

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char *paths[FILES];
static int synced_always[FILES];
static const char *below;
static size_t below_size;
static int to = -1;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("RECORDED_TO");
    below = getenv("RECORDED_BELOW");
    if (!name || !below)
        return;
    below_size = strlen(below);
    to = syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_ours(const char *path) {
    return to >= 0 && path && !strncmp(path, below, below_size) && path[below_size] == '/';
}

static int is_open(int file) { return to >= 0 && file >= 0 && file < FILES && paths[file]; }

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size) {
        ssize_t done = syscall(SYS_write, to, at, size);
        if (done <= 0)
            abort();
        at += done, size -= done;
    }
}

static void tell(char kind, int file, const char *path, const char *target, int64_t offset,
                 const void *data, uint64_t size, int synced) {
    struct head head = {kind, synced, path ? strlen(path) : 0, target ? strlen(target) : 0, file,
                        offset, size};
    int was = errno;
    put(&head, sizeof head);
    put(path, head.path);
    put(target, head.target);
    if (data)
        put(data, size);
    errno = was;
}

#define LOCKED(result, call, on_success)                                                           \
    pthread_mutex_lock(&lock);                                                                     \
    result done = (call);                                                                          \
    if (done >= 0) {                                                                               \
        on_success;                                                                                \
    }                                                                                              \
    pthread_mutex_unlock(&lock);                                                                   \
    return done

/* --- opening and closing ---------------------------------------------------------------------- */

static void on_open(int file, const char *path, int flags) {
    if (!is_ours(path) || file >= FILES)
        return;
    free(paths[file]);
    paths[file] = strdup(path);
    synced_always[file] = (flags & (O_SYNC | O_DSYNC)) != 0;
    tell('o', file, path, NULL, (flags & O_CREAT ? 1 : 0) | (flags & O_TRUNC ? 2 : 0), NULL, 0, 0);
}

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        REAL(name, int, const char *, int, ...);                                                   \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                    \
        va_end(rest);                                                                              \
        LOCKED(int, real(path, flags, mode), on_open(done, path, flags));                          \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
    int name(int directory, const char *path, int flags, ...) {                                    \
        REAL(name, int, int, const char *, int, ...);                                              \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                    \
        va_end(rest);                                                                              \
        LOCKED(int, real(directory, path, flags, mode), on_open(done, path, flags));               \
    }
OPENAT(openat)
OPENAT(openat64)

int close(int file) {
    REAL(close, int, int);
    pthread_mutex_lock(&lock);
    if (is_open(file)) {
        tell('c', file, NULL, NULL, 0, NULL, 0, 0);
        free(paths[file]);
        paths[file] = NULL;
    }
    int done = real(file);
    pthread_mutex_unlock(&lock);
    return done;
}

/* --- contents --------------------------------------------------------------------------------- */

static int64_t place(int file) {
    struct stat found;
    if (fcntl(file, F_GETFL) & O_APPEND)
        return fstat(file, &found) ? 0 : found.st_size;
    return lseek(file, 0, SEEK_CUR);
}

ssize_t write(int file, const void *data, size_t size) {
    REAL(write, ssize_t, int, const void *, size_t);
    if (!is_open(file))
        return real(file, data, size);
    pthread_mutex_lock(&lock);
    int64_t at = place(file);
    ssize_t done = real(file, data, size);
    if (done > 0)
        tell('w', file, NULL, NULL, at, data, done, synced_always[file]);
    pthread_mutex_unlock(&lock);
    return done;
}

#define PWRITE(name)                                                                               \
    ssize_t name(int file, const void *data, size_t size, off64_t at) {                            \
        REAL(name, ssize_t, int, const void *, size_t, off64_t);                                   \
        if (!is_open(file))                                                                        \
            return real(file, data, size, at);                                                     \
        LOCKED(ssize_t, real(file, data, size, at),                                                \
               tell('w', file, NULL, NULL, at, data, done, synced_always[file]));                  \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

static void tell_vector(int file, const struct iovec *parts, int count, int64_t at, ssize_t size,
                        int synced) {
    for (int each = 0; each < count && size > 0; each++) {
        size_t part = parts[each].iov_len < (size_t)size ? parts[each].iov_len : (size_t)size;
        tell('w', file, NULL, NULL, at, parts[each].iov_base, part, synced);
        at += part, size -= part;
    }
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev, ssize_t, int, const struct iovec *, int);
    if (!is_open(file))
        return real(file, parts, count);
    int64_t at = place(file);
    LOCKED(ssize_t, real(file, parts, count),
           tell_vector(file, parts, count, at, done, synced_always[file]));
}

#define PWRITEV(name)                                                                              \
    ssize_t name(int file, const struct iovec *parts, int count, off64_t at) {                     \
        REAL(name, ssize_t, int, const struct iovec *, int, off64_t);                              \
        if (!is_open(file))                                                                        \
            return real(file, parts, count, at);                                                   \
        LOCKED(ssize_t, real(file, parts, count, at),                                              \
               tell_vector(file, parts, count, at, done, synced_always[file]));                    \
    }
PWRITEV(pwritev)
PWRITEV(pwritev64)

#define PWRITEV2(name)                                                                             \
    ssize_t name(int file, const struct iovec *parts, int count, off64_t at, int flags) {          \
        REAL(name, ssize_t, int, const struct iovec *, int, off64_t, int);                         \
        if (!is_open(file))                                                                        \
            return real(file, parts, count, at, flags);                                            \
        LOCKED(ssize_t, real(file, parts, count, at, flags),                                       \
               tell_vector(file, parts, count, at, done,                                           \
                           synced_always[file] || (flags & (RWF_DSYNC | RWF_SYNC))));              \
    }
PWRITEV2(pwritev2)
PWRITEV2(pwritev64v2)

#define SYNC(name)                                                                                 \
    int name(int file) {                                                                           \
        REAL(name, int, int);                                                                      \
        if (!is_open(file))                                                                        \
            return real(file);                                                                     \
        LOCKED(int, real(file), tell('s', file, NULL, NULL, 0, NULL, 0, 0));                       \
    }
SYNC(fsync)
SYNC(fdatasync)

#define FTRUNCATE(name)                                                                            \
    int name(int file, off64_t size) {                                                             \
        REAL(name, int, int, off64_t);                                                             \
        if (!is_open(file))                                                                        \
            return real(file, size);                                                               \
        LOCKED(int, real(file, size), tell('t', file, NULL, NULL, size, NULL, 0, 0));              \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

#define TRUNCATE(name)                                                                             \
    int name(const char *path, off64_t size) {                                                     \
        REAL(name, int, const char *, off64_t);                                                    \
        if (!is_ours(path))                                                                        \
            return real(path, size);                                                               \
        LOCKED(int, real(path, size), tell('t', -1, path, NULL, size, NULL, 0, 0));                \
    }
TRUNCATE(truncate)
TRUNCATE(truncate64)

#define FALLOCATE(name)                                                                            \
    int name(int file, int mode, off64_t at, off64_t size) {                                       \
        REAL(name, int, int, int, off64_t, off64_t);                                               \
        if (!is_open(file) || mode)                                                                \
            return real(file, mode, at, size);                                                     \
        LOCKED(int, real(file, mode, at, size),                                                    \
               tell('a', file, NULL, NULL, at + size, NULL, 0, 0));                                \
    }
FALLOCATE(fallocate)
FALLOCATE(fallocate64)

#define POSIX_FALLOCATE(name)                                                                      \
    int name(int file, off64_t at, off64_t size) {                                                 \
        REAL(name, int, int, off64_t, off64_t);                                                    \
        if (!is_open(file))                                                                        \
            return real(file, at, size);                                                           \
        pthread_mutex_lock(&lock);                                                                 \
        int failure = real(file, at, size);                                                        \
        if (!failure)                                                                              \
            tell('a', file, NULL, NULL, at + size, NULL, 0, 0);                                    \
        pthread_mutex_unlock(&lock);                                                               \
        return failure;                                                                            \
    }
POSIX_FALLOCATE(posix_fallocate)
POSIX_FALLOCATE(posix_fallocate64)

/* --- names ------------------------------------------------------------------------------------ */

int rename(const char *source, const char *target) {
    REAL(rename, int, const char *, const char *);
    if (!is_ours(source))
        return real(source, target);
    LOCKED(int, real(source, target), tell('r', -1, source, target, 0, NULL, 0, 0));
}

int renameat(int here, const char *source, int there, const char *target) {
    REAL(renameat, int, int, const char *, int, const char *);
    if (!is_ours(source))
        return real(here, source, there, target);
    LOCKED(int, real(here, source, there, target), tell('r', -1, source, target, 0, NULL, 0, 0));
}

int unlink(const char *path) {
    REAL(unlink, int, const char *);
    if (!is_ours(path))
        return real(path);
    LOCKED(int, real(path), tell('u', -1, path, NULL, 0, NULL, 0, 0));
}

int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat, int, int, const char *, int);
    char whole[4096];
    if (path[0] != '/' && is_open(directory) &&
        strlen(paths[directory]) + strlen(path) + 2 < sizeof whole) {
        strcpy(whole, paths[directory]);
        strcat(whole, "/");
        strcat(whole, path);
    } else if (is_ours(path) && strlen(path) < sizeof whole) {
        strcpy(whole, path);
    } else {
        return real(directory, path, flags);
    }
    LOCKED(int, real(directory, path, flags),
           tell(flags & AT_REMOVEDIR ? 'd' : 'u', -1, whole, NULL, 0, NULL, 0, 0));
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir, int, const char *, mode_t);
    if (!is_ours(path))
        return real(path, mode);
    LOCKED(int, real(path, mode), tell('m', -1, path, NULL, 0, NULL, 0, 0));
}

int rmdir(const char *path) {
    REAL(rmdir, int, const char *);
    if (!is_ours(path))
        return real(path);
    LOCKED(int, real(path), tell('d', -1, path, NULL, 0, NULL, 0, 0));
}
