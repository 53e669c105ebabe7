/* Calls that wait, and what ends them: signals, time, another thread. */
#include "check.h"
#include <setjmp.h>

static volatile sig_atomic_t signals;
static volatile int fd_of_handler = -1;
static volatile long result_of_handler, errno_of_handler;
static jmp_buf back;

static void count(int number)
{
    (void)number;
    ++signals;
}

static void receive(int number)
{
    (void)number;
    char byte;
    ++signals;
    int before = errno;
    result_of_handler = recv(fd_of_handler, &byte, 1, MSG_DONTWAIT);
    errno_of_handler = errno;
    errno = before;
}

static void leap(int number)
{
    (void)number;
    longjmp(back, 1);
}

static void handle(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags | SA_NODEFER};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
}

/* SIGALRM in so many milliseconds. */
static void alarm_in(int ms)
{
    struct itimerval timer = {.it_value = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

struct later {
    int fd, port, ms;
    const char *text;
};

static void *put_later(void *argument)
{
    struct later *later = argument;
    struct timespec span = {later->ms / 1000, later->ms % 1000 * 1000000L};
    nanosleep(&span, NULL);
    put(later->fd, later->port, later->text);
    return NULL;
}

static pthread_t send_later(struct later *later)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, put_later, later) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

static void interrupted(void)
{
    int ours = bound(0);
    char byte;
    handle(count, 0);
    alarm_in(50);
    CHECK(read(ours, &byte, 1) == -1 && errno == EINTR && signals == 1);
}

static void restarted(void)
{
    int ours = bound(0), other = bound(0);
    struct later later = {other, port_of(ours), 300, "later"};
    handle(count, SA_RESTART);
    pthread_t thread = send_later(&later);
    alarm_in(50);
    get(ours, "later");
    CHECK(signals == 1);
    pthread_join(thread, NULL);
}

static void in_time(void)
{
    int ours = bound(0);
    char byte;
    struct timeval wait = {0, 50000}, found;
    socklen_t length = sizeof found;
    CHECK(setsockopt(ours, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    CHECK(getsockopt(ours, SOL_SOCKET, SO_RCVTIMEO, &found, &length) == 0 && found.tv_usec >= 50000);
    CHECK(recv(ours, &byte, 1, 0) == -1 && errno == ETIMEDOUT);
    CHECK(recv(ours, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    int on = 1;
    CHECK(ioctl(ours, FIONBIO, &on) == 0);
    CHECK(recv(ours, &byte, 1, 0) == -1 && errno == EAGAIN);
}

/* A receive inside the handler that interrupted a receive of this thread. */
static void within(void)
{
    int ours = bound(0), other = bound(0);
    struct later later = {other, port_of(ours), 200, "for the outer one"};
    handle(receive, SA_RESTART);
    fd_of_handler = ours;
    pthread_t thread = send_later(&later);
    alarm_in(50);
    get(ours, "for the outer one");
    CHECK(signals == 1 && result_of_handler == -1 && errno_of_handler == EAGAIN);
    pthread_join(thread, NULL);
}

/* Calls and handlers at every instant: no message is lost, none hangs. */
static void stormy(void)
{
    enum { ROUNDS = 20000 };
    int ours = bound(0), other = bound(0), port = port_of(ours);
    struct sockaddr_in name = at_port(port);
    handle(receive, SA_RESTART);
    fd_of_handler = other; /* its own lock; nothing arrives there */
    struct itimerval timer = {{0, 200}, {0, 200}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    for (int n = 0; n < ROUNDS; ++n) {
        int number = -1;
        CHECK(sendto(other, &n, sizeof n, 0, (struct sockaddr *)&name, sizeof name) == sizeof n);
        CHECK(recv(ours, &number, sizeof number, 0) == sizeof number && number == n);
    }
    alarm_in(0);
    CHECK(signals > 0);
}

static void left_by_longjmp(void)
{
    int ours = bound(0), other = bound(0);
    char byte;
    handle(leap, 0);
    if (setjmp(back) == 0) {
        alarm_in(50);
        recv(ours, &byte, 1, 0);
        CHECK(!"left");
    }
    put(other, port_of(ours), "after"), get(ours, "after");
}

static void *wait_for_ever(void *argument)
{
    char byte;
    recv(*(int *)argument, &byte, 1, 0);
    return NULL;
}

static void cancelled(void)
{
    int ours = bound(0), other = bound(0);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, &ours) == 0);
    pass_a_tick();
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    put(other, port_of(ours), "after"), get(ours, "after");
}

/* A thread that closes what another one waits on: the memory stays while it is used. */
static void closed_meanwhile(void)
{
    int ours = bound(0), other = bound(0), copy = dup(ours), port = port_of(ours);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_ever, &ours) == 0);
    pass_a_tick();
    close(ours);
    put(other, port, "x");
    CHECK(pthread_join(thread, NULL) == 0);
    put(other, port, "after"), get(copy, "after");
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"interrupted", interrupted}, {"restarted", restarted}, {"in_time", in_time}, {"within", within},
        {"stormy", stormy}, {"left_by_longjmp", left_by_longjmp}, {"cancelled", cancelled},
        {"closed_meanwhile", closed_meanwhile}, {NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
