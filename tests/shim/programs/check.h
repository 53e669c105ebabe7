/* For the programs of these tests: sockets on ports of the address in argv[1], and a line on failure. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static const char *host;

#define CHECK(truth)                                                                                     \
    do {                                                                                                 \
        if (!(truth)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #truth, errno,             \
                    strerror(errno));                                                                    \
            exit(1);                                                                                     \
        }                                                                                                \
    } while (0)

static inline struct sockaddr_in at_port(int port)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    CHECK(inet_pton(AF_INET, host, &name.sin_addr) == 1);
    return name;
}

/* A socket on a port of the host, or on any with 0. */
static inline int bound(int port)
{
    int fd = socket(21, SOCK_SEQPACKET, 0);
    CHECK(fd >= 0);
    struct sockaddr_in name = at_port(port);
    CHECK(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
    return fd;
}

static inline int port_of(int fd)
{
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    CHECK(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
    return ntohs(name.sin_port);
}

static inline void put(int fd, int port, const char *text)
{
    struct sockaddr_in name = at_port(port);
    CHECK(sendto(fd, text, strlen(text), 0, (struct sockaddr *)&name, sizeof name) == (ssize_t)strlen(text));
}

/* The next message is this one. It is waited for. */
static inline void get(int fd, const char *text)
{
    char bytes[256];
    ssize_t count = recv(fd, bytes, sizeof bytes, 0);
    CHECK(count == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)count) == 0);
}

static inline void nothing(int fd)
{
    char byte;
    CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static inline void succeeded(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Long enough that what is known of a descriptor is asked for again. */
static inline void pass_a_tick(void)
{
    struct timespec span = {.tv_nsec = 20 * 1000 * 1000};
    nanosleep(&span, NULL);
}

struct test {
    const char *name;
    void (*run)(void);
};

/* Run the test that argv[2] names, or print all names. */
static inline int run_tests(int argc, char **argv, const struct test *tests)
{
    for (; tests->name; ++tests) {
        if (argc < 3) {
            puts(tests->name);
        } else if (strcmp(argv[2], tests->name) == 0) {
            host = argv[1];
            tests->run();
            return 0;
        }
    }
    return argc < 3 ? 0 : 2;
}
