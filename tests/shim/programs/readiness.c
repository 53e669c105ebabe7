/* Readiness is the kernel's: poll, select and epoll of every kind, and SIGIO. */
#include "check.h"

static short bits(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDNORM | POLLWRNORM};
    CHECK(poll(&one, 1, 0) >= 0);
    return one.revents;
}

/* Within a second: the node shows what it was told of a moment later. */
static void wait_for(int fd, short wanted)
{
    struct pollfd one = {.fd = fd, .events = wanted};
    CHECK(poll(&one, 1, 10000) == 1 && one.revents & wanted);
}

static const short IN = POLLIN | POLLRDNORM, OUT = POLLOUT | POLLWRNORM;

static void fill(int fd, int port)
{
    static char bytes[4096];
    struct sockaddr_in name = at_port(port);
    for (int n = 0; n < 1 << 20; ++n) {
        if (sendto(fd, bytes, sizeof bytes, MSG_DONTWAIT, (struct sockaddr *)&name, sizeof name) == -1) {
            CHECK(errno == EAGAIN || errno == ENOBUFS);
            return;
        }
    }
    CHECK(!"full");
}

static void by_poll(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours);
    CHECK(bits(ours) == OUT);
    put(other, port, "one"), put(other, port, "");
    wait_for(ours, POLLIN);
    CHECK(bits(ours) == (IN | OUT));
    get(ours, "one");
    wait_for(ours, POLLIN); /* an empty message is one; the node may bring it a moment later */
    CHECK(bits(ours) == (IN | OUT));
    get(ours, "");
    nothing(ours);
    CHECK(bits(ours) == OUT);
}

static void by_select(void)
{
    int ours = bound(0), other = bound(0);
    fd_set readable, writable;
    struct timeval none = {0, 0};
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(ours, &readable);
    FD_SET(ours, &writable);
    CHECK(select(ours + 1, &readable, &writable, NULL, &none) == 1 && FD_ISSET(ours, &writable));
    put(other, port_of(ours), "one");
    wait_for(ours, POLLIN);
    FD_SET(ours, &readable);
    CHECK(select(ours + 1, &readable, NULL, NULL, &none) == 1);
}

static int watched(int fd, uint32_t events)
{
    int set = epoll_create1(0);
    struct epoll_event event = {.events = events, .data.fd = fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

static int ready(int set, int wait_ms)
{
    struct epoll_event events[4];
    return epoll_wait(set, events, 4, wait_ms);
}

/* Registered before bind, which needs no other descriptor. */
static void by_epoll(void)
{
    int ours = socket(21, SOCK_SEQPACKET, 0), other = bound(0);
    int set = watched(ours, EPOLLIN), outer = watched(set, EPOLLIN);
    struct sockaddr_in name = at_port(0);
    CHECK(bind(ours, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(ready(set, 0) == 0 && ready(outer, 0) == 0);
    put(other, port_of(ours), "one"), put(other, port_of(ours), "two");
    CHECK(ready(set, 10000) == 1 && ready(outer, 10000) == 1);
    get(ours, "one");
    CHECK(ready(set, 10000) == 1); /* level-triggered: still */
    get(ours, "two");
    nothing(ours);
    CHECK(ready(set, 0) == 0 && ready(outer, 0) == 0);
}

static void by_edges(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours), set = watched(ours, EPOLLIN | EPOLLET);
    for (int round = 0; round < 100; ++round) {
        put(other, port, "one");
        CHECK(ready(set, 10000) == 1);
        get(ours, "one");
        nothing(ours); /* as epoll(7) asks: until EAGAIN */
    }
    CHECK(ready(set, 0) == 0);
}

static void once(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours), set = watched(ours, EPOLLIN | EPOLLONESHOT);
    put(other, port, "one");
    CHECK(ready(set, 10000) == 1 && ready(set, 0) == 0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = ours};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ours, &event) == 0);
    CHECK(ready(set, 10000) == 1);
}

static void exclusive(void)
{
    int ours = bound(0), other = bound(0);
    int first = watched(ours, EPOLLIN | EPOLLEXCLUSIVE), second = watched(ours, EPOLLIN | EPOLLEXCLUSIVE);
    put(other, port_of(ours), "one");
    wait_for(ours, POLLIN);
    CHECK(ready(first, 0) + ready(second, 0) >= 1);
}

static volatile sig_atomic_t signals;

static void count(int number)
{
    (void)number;
    ++signals;
}

static void by_signal(void)
{
    int ours = bound(0), other = bound(0);
    struct sigaction action = {.sa_handler = count};
    CHECK(sigaction(SIGIO, &action, NULL) == 0);
    CHECK(fcntl(ours, F_SETOWN, getpid()) == 0);
    CHECK(fcntl(ours, F_SETFL, O_ASYNC | O_NONBLOCK) == 0);
    put(other, port_of(ours), "one");
    for (int n = 0; n < 500 && !signals; ++n)
        pass_a_tick();
    CHECK(signals > 0);
    get(ours, "one");
}

/* A socket that may not send more is not writable, until its receiver takes half. */
static void full(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours), set = watched(other, EPOLLOUT | EPOLLET);
    CHECK(ready(set, 1000) == 1);
    fill(other, port);
    if (errno == ENOBUFS)
        return; /* congested: says nothing about POLLOUT */
    CHECK(!(bits(other) & POLLOUT));
    static char bytes[4096];
    while (recv(ours, bytes, sizeof bytes, MSG_DONTWAIT) >= 0 || !(bits(other) & POLLOUT))
        ;
    wait_for(other, POLLOUT);
    CHECK(ready(set, 10000) == 1);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"by_poll", by_poll}, {"by_select", by_select}, {"by_epoll", by_epoll}, {"by_edges", by_edges},
        {"once", once}, {"exclusive", exclusive}, {"by_signal", by_signal}, {"full", full}, {NULL, NULL},
    };
    return run_tests(argc, argv, tests);
}
