/* A library that is preloaded beside ours: it makes and uses a socket before the program's own
 * constructors have run, and it has a `close` of its own that calls the next one. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int closed;

int close(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
    ++closed;
    return next(fd);
}

__attribute__((constructor(101))) static void early(void)
{
    const char *host = getenv("EARLY_HOST");
    struct sockaddr_in name = {.sin_family = AF_INET};
    socklen_t length = sizeof name;
    char bytes[8];
    if (!host || !strstr(getenv("EARLY_PROGRAM"), program_invocation_short_name))
        return;
    inet_pton(AF_INET, host, &name.sin_addr);
    int fd = socket(AF_RDS, SOCK_SEQPACKET, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof name) || getsockname(fd, (struct sockaddr *)&name, &length)
        || sendto(fd, "early", 5, 0, (struct sockaddr *)&name, sizeof name) != 5
        || recv(fd, bytes, sizeof bytes, 0) != 5 || close(fd) || !closed) {
        perror("early");
        _exit(3);
    }
}
