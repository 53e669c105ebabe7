/* A socket under every name that a descriptor can get, and in every process. */
#include "check.h"

static void forked(void)
{
    int ours = bound(0), other = bound(0);
    pid_t child = fork();
    if (child == 0) {
        get(ours, "to the child");
        put(ours, port_of(other), "from the child");
        _exit(0);
    }
    put(other, port_of(ours), "to the child");
    get(other, "from the child");
    succeeded(child);
    put(other, port_of(ours), "to the parent");
    get(ours, "to the parent");
}

static void parent_ends_first(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(pipes[1]);
        CHECK(read(pipes[0], &byte, 1) == 0); /* the parent has closed its own */
        put(other, port, "still here");
        get(ours, "still here");
        _exit(0);
    }
    close(ours);
    close(other);
    close(pipes[1]);
    succeeded(child);
}

/* A port is free at the last close, in whichever process. */
static void bound_again(void)
{
    int ours = bound(0), port = port_of(ours);
    for (int round = 0; round < 1000; round++) {
        if (round % 32 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            succeeded(child);
        }
        close(ours);
        ours = bound(port);
    }
}

static void vforked(void)
{
    int ours = bound(0), other = bound(0);
    volatile int fd = ours;
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        close(0);
        _exit(0);
    }
    succeeded(child);
    put(other, port_of(ours), "after vfork");
    get(ours, "after vfork");
}

/* The child of posix_spawn and exec is this program again, with the numbers in its arguments. */
static void inherit(int as, int port)
{
    char number[16], to[16], *arguments[] = {"descriptors", (char *)host, "child", number, to, NULL};
    snprintf(number, sizeof number, "%d", as);
    snprintf(to, sizeof to, "%d", port);
    pid_t child;
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    succeeded(child);
}

static void spawned(void)
{
    int ours = bound(0), other = bound(0);
    CHECK(fcntl(ours, F_SETFD, 0) == 0);
    inherit(ours, port_of(other));
    get(other, "from the program");
    int copy = dup(ours); /* without FD_CLOEXEC */
    CHECK(fcntl(ours, F_SETFD, FD_CLOEXEC) == 0);
    inherit(copy, port_of(other));
    get(other, "from the program");
}

static void closed_on_exec(void)
{
    int ours = socket(21, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), plain = bound(0);
    CHECK(fcntl(ours, F_GETFD) == FD_CLOEXEC && fcntl(ours, F_GETFL) & O_NONBLOCK);
    CHECK(fcntl(plain, F_GETFD) == 0 && !(fcntl(plain, F_GETFL) & O_NONBLOCK));
    nothing(ours);
}

static void child(void)
{
    extern char **arguments_of_child;
    int fd = atoi(arguments_of_child[3]);
    put(fd, atoi(arguments_of_child[4]), "from the program");
}

static void copies(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours);
    int first = dup(ours), second = fcntl(ours, F_DUPFD, 200), third = fcntl(ours, F_DUPFD_CLOEXEC, 300);
    CHECK(first >= 0 && second >= 200 && third >= 300);
    put(other, port, "1"), get(first, "1");
    put(other, port, "2"), get(second, "2");
    close(ours);
    close(first);
    put(third, port, "3"), get(second, "3");
    close(second);
    put(other, port, "4"), get(third, "4");
    CHECK(port_of(third) == port);
    close(third);
    errno = 0;
    CHECK(recv(third, &port, 1, 0) == -1 && errno == EBADF);
    int again = bound(port); /* nobody has it any more; the node hears of that soon */
    close(again);
}

static void over_each_other(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours), pipes[2];
    char byte = 'x';
    CHECK(pipe(pipes) == 0);
    CHECK(write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1);
    CHECK(dup2(ours, pipes[0]) == pipes[0]); /* ours over another's */
    put(other, port, "a"), get(pipes[0], "a");
    int spare[2];
    CHECK(pipe(spare) == 0);
    CHECK(dup2(spare[0], ours) == ours); /* another's over ours */
    CHECK(write(spare[1], "pipe", 4) == 4);
    char bytes[8];
    CHECK(read(ours, bytes, sizeof bytes) == 4 && memcmp(bytes, "pipe", 4) == 0);
    CHECK(dup3(pipes[0], spare[1], O_CLOEXEC) == spare[1]);
    put(other, port, "b"), get(spare[1], "b");
    CHECK(dup2(spare[1], spare[1]) == spare[1]); /* over itself: nothing happens */
    put(other, port, "c"), get(spare[1], "c");
}

/* To a process that never made a socket. */
static void sent_along(void)
{
    int ours = bound(0), other = bound(0), port = port_of(other), pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    pid_t child = fork();
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    char byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (child == 0) {
        close(ours);
        close(other);
        CHECK(recvmsg(pair[1], &message, 0) == 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        put(fd, port, "from afar");
        _exit(0);
    }
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof ours);
    memcpy(CMSG_DATA(header), &ours, sizeof ours);
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    close(ours); /* under way it lives on */
    get(other, "from afar");
    succeeded(child);
}

static void all_closed(void)
{
    int ours = bound(0), high = fcntl(ours, F_DUPFD, 100), other = bound(0);
    int kept = fcntl(other, F_DUPFD, 150), port = port_of(ours);
#ifdef __GLIBC__
    CHECK(close_range((unsigned)ours, 120, 0) == 0);
    CHECK(fcntl(high, F_GETFD) == -1);
    put(kept, port, "to none"); /* accepted, and nobody hears it */
    closefrom(140);
    CHECK(fcntl(kept, F_GETFD) == -1);
#else
    (void)kept, (void)port;
    CHECK(syscall(SYS_close_range, (unsigned)ours, 120, 0) == 0);
    pass_a_tick();
#endif
    int pipes[2];
    CHECK(pipe(pipes) == 0 && write(pipes[1], "x", 1) == 1);
    char bytes[4];
    CHECK(read(pipes[0], bytes, 4) == 1); /* numbers that were ours */
    CHECK(recv(high, bytes, 1, 0) == -1 && errno == EBADF);
}

static void a_raw_close(void)
{
    int ours = bound(0), other = bound(0), pipes[2], port = port_of(other);
    CHECK(syscall(SYS_close, ours) == 0); /* no hook sees it */
    pass_a_tick();
    CHECK(pipe(pipes) == 0 && (pipes[0] == ours || pipes[1] == ours));
    CHECK(write(pipes[1], "pipe", 4) == 4);
    char bytes[8];
    CHECK(read(pipes[0], bytes, sizeof bytes) == 4);
    nothing(other);
    CHECK(syscall(SYS_close, pipes[0]) == 0);
    pass_a_tick();
    int again = dup(other); /* not a hook either: the number of the pipe */
    CHECK(again == pipes[0]);
    put(again, port, "again"), get(again, "again");
}

static void streams(void)
{
    int ours = bound(0), other = bound(0), port = port_of(ours);
    FILE *file = fdopen(ours, "r");
    CHECK(file && fclose(file) == 0);
    FILE *again = tmpfile();
    CHECK(again && fileno(again) == ours);
    CHECK(write(ours, "file", 4) == 4 && lseek(ours, 0, SEEK_CUR) == 4);
    put(other, port, "to none");
}

static void files(void)
{
    int ours = bound(0), pipes[2];
    char bytes[4] = "abc";
    CHECK(pipe(pipes) == 0);
    CHECK(splice(pipes[0], NULL, ours, NULL, 1, 0) == -1 && errno == EINVAL);
    CHECK(pread(ours, bytes, 1, 0) == -1 && pwrite(ours, bytes, 1, 0) == -1);
    CHECK(lseek(ours, 0, SEEK_SET) == -1 && errno == ESPIPE);
    int count;
    CHECK(ioctl(ours, 0x541B, &count) == -1 && errno == ENOTTY); /* FIONREAD */
    CHECK(listen(ours, 1) == -1 && errno == EOPNOTSUPP);
    CHECK(accept(ours, NULL, NULL) == -1 && errno == EOPNOTSUPP);
    CHECK(shutdown(ours, SHUT_RDWR) == -1 && errno == EOPNOTSUPP);
    nothing(ours);
}

char **arguments_of_child;

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"forked", forked}, {"parent_ends_first", parent_ends_first}, {"bound_again", bound_again},
        {"vforked", vforked}, {"spawned", spawned}, {"closed_on_exec", closed_on_exec}, {"copies", copies},
        {"over_each_other", over_each_other}, {"sent_along", sent_along}, {"all_closed", all_closed},
        {"a_raw_close", a_raw_close}, {"streams", streams}, {"files", files}, {NULL, NULL},
    };
    arguments_of_child = argv;
    if (argc == 5 && strcmp(argv[2], "child") == 0) {
        host = argv[1];
        child();
        return 0;
    }
    return run_tests(argc, argv, tests);
}
