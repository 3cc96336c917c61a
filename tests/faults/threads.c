/* A library to preload: the n-th thread that the process starts, or it and all later ones, cannot be created. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static atomic_int armed;
static atomic_long count;
static long wanted;
static int persistent;

void threads_arm(long n, int stays) {
    wanted = n;
    persistent = stays;
    atomic_store(&count, 0);
    atomic_store(&armed, 1);
}

long threads_count(void) {
    atomic_store(&armed, 0);
    return atomic_load(&count);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_load(&armed)) {
        long number = atomic_fetch_add(&count, 1) + 1;
        if (wanted > 0 && (number == wanted || (persistent && number > wanted))) return EAGAIN;
    }
    return real(thread, attributes, run, argument);
}
