/* Senders and receivers in processes of their own share two sockets: `many HOST COUNT MESSAGES KILLED`.
 * Each message is counted where all see it; with KILLED, so many receivers are killed in between, each in
 * the middle of the library's own code: most of that is run with the socket's lock. */
#include "check.h"
#include <sys/mman.h>

enum { COUNT_MAX = 16 };

struct shared {
    _Atomic long received;
    _Atomic long killed; /* receivers: what each took and did not count is lost */
    _Atomic unsigned char seen[]; /* of each message, how often */
};

static void send_all(int fd, int port, int sender, long messages, int is_polling)
{
    struct sockaddr_in to = at_port(port);
    for (long n = 0; n < messages; ++n) {
        long number = sender * messages + n;
        for (;;) {
            int flags = is_polling ? MSG_DONTWAIT : 0;
            ssize_t sent = sendto(fd, &number, sizeof number, flags, (struct sockaddr *)&to, sizeof to);
            if (sent == sizeof number)
                break;
            CHECK(sent == -1 && (errno == EAGAIN || errno == ENOBUFS));
            struct pollfd one = {.fd = fd, .events = POLLOUT};
            CHECK(poll(&one, 1, 100) >= 0);
        }
    }
}

static void receive_all(int fd, struct shared *shared, long whole, int is_polling)
{
    struct timeval wait = {0, 100000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    while (shared->received < whole - shared->killed) {
        long number;
        ssize_t count = recv(fd, &number, sizeof number, is_polling ? MSG_DONTWAIT : 0);
        if (count == -1) {
            CHECK(errno == EAGAIN || errno == ETIMEDOUT || errno == EINTR); /* stopped and continued */
            struct pollfd one = {.fd = fd, .events = POLLIN};
            CHECK(poll(&one, 1, 100) >= 0 || errno == EINTR);
            continue;
        }
        CHECK(count == sizeof number);
        ++shared->seen[number];
        ++shared->received;
    }
}

/* What receivers have left that ended early, for all that the killed ones may have lost. */
static void take_rest(int fd, struct shared *shared)
{
    struct timeval wait = {0, 300000};
    long number;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    while (recv(fd, &number, sizeof number, 0) == sizeof number)
        ++shared->seen[number];
}

/* Where the code of the library lies, in this process and in those that it forks. */
static void find_library(unsigned long *first, unsigned long *end)
{
    unsigned long own = (unsigned long)recv;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    *first = *end = 0;
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        CHECK(sscanf(line, "%lx-%lx", &from, &to) == 2);
        if (from <= own && own < to)
            *first = from, *end = to;
    }
    fclose(maps);
}

/* Whether a stopped process is in the library, and in no system call. */
static int is_inside(pid_t process, unsigned long first, unsigned long end)
{
    char path[64], line[256] = "";
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)process);
    FILE *told = fopen(path, "r");
    if (!told)
        return 0;
    unsigned long stack, at;
    int found = fgets(line, sizeof line, told) && sscanf(line, "-1 %lx %lx", &stack, &at) == 2;
    fclose(told);
    return found && first <= at && at < end;
}

/* Kill a process in the library, or wherever it is after many looks. Return whether it was there, -1 if it
 * had ended before. */
static int kill_inside(pid_t process, unsigned long first, unsigned long end)
{
    int is_there = 0;
    for (int tries = 0; tries < 200 && !is_there; ++tries) {
        int status;
        usleep(200 + (unsigned)tries % 7 * 50);
        CHECK(kill(process, SIGSTOP) == 0);
        CHECK(waitpid(process, &status, WUNTRACED) == process);
        if (WIFEXITED(status)) {
            CHECK(WEXITSTATUS(status) == 0);
            return -1;
        }
        is_there = is_inside(process, first, end);
        if (!is_there)
            CHECK(kill(process, SIGCONT) == 0);
    }
    CHECK(kill(process, SIGKILL) == 0 && waitpid(process, NULL, 0) == process);
    return is_there;
}

int main(int argc, char **argv)
{
    CHECK(argc == 5);
    host = argv[1];
    int count = atoi(argv[2]), killed = atoi(argv[4]);
    long messages = atol(argv[3]) / count, whole = messages * count;
    CHECK(count <= COUNT_MAX);
    struct shared *shared = mmap(NULL, sizeof *shared + (size_t)whole, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    int from = bound(0), to = bound(0), port = port_of(to);
    pid_t senders[COUNT_MAX], receivers[COUNT_MAX];
    for (int n = 0; n < count; ++n) {
        if ((receivers[n] = fork()) == 0) {
            receive_all(to, shared, whole, n % 2);
            _exit(0);
        }
        if ((senders[n] = fork()) == 0) {
            send_all(from, port, n, messages, n % 2);
            _exit(0);
        }
    }
    unsigned long first, end;
    int inside = 0, done = 0;
    find_library(&first, &end);
    for (int n = 0; n < killed; ++n) {
        int which = n % count;
        usleep(1000);
        int was_there = kill_inside(receivers[which], first, end);
        if (was_there < 0) { /* all is received */
            receivers[which] = 0;
            break;
        }
        inside += was_there, ++done, ++shared->killed;
        if ((receivers[which] = fork()) == 0) {
            receive_all(to, shared, whole, which % 2);
            _exit(0);
        }
    }
    for (int n = 0; n < count; ++n)
        succeeded(senders[n]);
    for (int n = 0; n < count; ++n)
        if (receivers[n])
            succeeded(receivers[n]);
    take_rest(to, shared);
    long lost = 0, twice = 0;
    for (long n = 0; n < whole; ++n)
        lost += !shared->seen[n], twice += shared->seen[n] > 1;
    printf("%ld messages, %ld lost, %ld twice, %d of %d killed inside\n", whole, lost, twice, inside, done);
    CHECK(lost <= done && twice == 0);
    return 0;
}
