/* Random sequences over a few numbers, against a model: what is written to a number goes to the file, or
 * from the socket, that the kernel has there, and to nothing else. `model HOST SEED STEPS` */
#include "check.h"
#include <sys/mman.h>

enum { NUMBERS = 24, FIRST = 100, FILES = 6, SOCKETS = 4, NONE = -1 };

static int holds[NUMBERS];                /* which file (below FILES) or socket is at FIRST + index */
static int files[FILES], sockets[SOCKETS]; /* kept aside, and only dup'ed */
static long length_of[FILES];
static uint32_t state;

static unsigned draw(unsigned below)
{
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state % below;
}

static int any(int is_free)
{
    for (int tries = 0; tries < 64; ++tries) {
        int n = (int)draw(NUMBERS);
        if ((holds[n] == NONE) == is_free)
            return n;
    }
    return NONE;
}

static int kept(int what)
{
    return what < FILES ? files[what] : sockets[what - FILES];
}

static void give(int n)
{
    int what = (int)draw(FILES + SOCKETS), fd = FIRST + n;
    switch (draw(3)) {
    case 0:
        CHECK(dup2(kept(what), fd) == fd);
        break;
    case 1:
        CHECK(dup3(kept(what), fd, draw(2) ? O_CLOEXEC : 0) == fd);
        break;
    default:
        if (holds[n] != NONE)
            CHECK(close(fd) == 0);
        CHECK(fcntl(kept(what), F_DUPFD, fd) == fd);
    }
    holds[n] = what;
}

static void take(int n)
{
    int fd = FIRST + n;
    switch (draw(40)) {
    case 0: /* past libc */
        CHECK(syscall(SYS_close, fd) == 0);
        pass_a_tick();
        break;
    case 1: {
        pid_t child = vfork();
        if (child == 0) {
            close(fd); /* the parent has it still */
            _exit(0);
        }
        succeeded(child);
        return;
    }
#ifdef __GLIBC__
    case 2:
        CHECK(close_range((unsigned)fd, (unsigned)fd, 0) == 0);
        break;
#endif
    default:
        CHECK(close(fd) == 0);
    }
    holds[n] = NONE;
}

static void use(int n, uint32_t step, int sink)
{
    int fd = FIRST + n, what = holds[n];
    if (what < FILES) {
        CHECK(write(fd, &step, sizeof step) == sizeof step);
        length_of[what] += sizeof step;
        uint32_t last;
        CHECK(pread(files[what], &last, sizeof last, length_of[what] - 4) == 4 && last == step);
        return;
    }
    uint32_t found;
    switch (draw(3)) {
    case 0:
        CHECK(write(fd, &step, sizeof step) == sizeof step);
        break;
    case 1:
        CHECK(send(fd, &step, sizeof step, 0) == sizeof step);
        break;
    default: {
        struct iovec parts[2] = {{&step, 1}, {(char *)&step + 1, 3}};
        CHECK(writev(fd, parts, 2) == sizeof step);
    }
    }
    struct sockaddr_in name;
    socklen_t length = sizeof name;
    CHECK(recvfrom(sink, &found, sizeof found, 0, (struct sockaddr *)&name, &length) == sizeof found);
    CHECK(found == step && ntohs(name.sin_port) == port_of(sockets[what - FILES]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    host = argv[1];
    state = (uint32_t)atoi(argv[2]) * 2654435761u | 1;
    long steps = atol(argv[3]);
    int sink = bound(0);
    struct sockaddr_in to = at_port(port_of(sink));
    for (int n = 0; n < FILES; ++n) {
        files[n] = memfd_create("model", 0);
        CHECK(files[n] >= 0 && fcntl(files[n], F_SETFL, O_APPEND) == 0);
    }
    for (int n = 0; n < SOCKETS; ++n) {
        sockets[n] = bound(0);
        CHECK(connect(sockets[n], (struct sockaddr *)&to, sizeof to) == 0);
    }
    for (int n = 0; n < NUMBERS; ++n)
        holds[n] = NONE;
    for (long step = 0; step < steps; ++step) {
        int n;
        unsigned what = draw(10);
        if (what < 2 && (n = any(1)) != NONE)
            give(n);
        else if (what == 2 && (n = any(0)) != NONE)
            give(n); /* over what is there */
        else if (what < 5 && (n = any(0)) != NONE)
            take(n);
        else if ((n = any(0)) != NONE)
            use(n, (uint32_t)step, sink);
    }
    for (int n = 0; n < FILES; ++n)
        CHECK(lseek(files[n], 0, SEEK_END) == length_of[n]);
    nothing(sink);
    return 0;
}
