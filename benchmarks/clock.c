/* Loaded before all others (LD_PRELOAD): the calendar's clock is ahead by the seconds that the file of CLOCK_OFFSET
   holds, from one call to the next. The monotonic clock and every wait go on, as when a person sets the kernel's clock;
   libfaketime 0.9 makes waits of such a jump fail or last for minutes. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void)
{
    const char *place = getenv("CLOCK_OFFSET");
    char text[32] = {0};
    int file = place == NULL ? -1 : open(place, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 ? strtol(text, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed)
        now->tv_sec += offset();
    return failed;
}

time_t time(time_t *kept)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept != NULL)
        *kept = now.tv_sec;
    return now.tv_sec;
}
