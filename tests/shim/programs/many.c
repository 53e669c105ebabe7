/* Senders and receivers in processes of their own share two sockets: `many HOST COUNT MESSAGES KILLED`.
 * Each message is counted where all see it; with KILLED, so many receivers are killed in between. */
#include "check.h"
#include <sys/mman.h>

enum { COUNT_MAX = 16 };

struct shared {
    _Atomic long received;
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

static void receive_all(int fd, struct shared *shared, long wanted, int is_polling)
{
    struct timeval wait = {0, 100000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    while (shared->received < wanted) {
        long number;
        ssize_t count = recv(fd, &number, sizeof number, is_polling ? MSG_DONTWAIT : 0);
        if (count == -1) {
            CHECK(errno == EAGAIN || errno == ETIMEDOUT);
            struct pollfd one = {.fd = fd, .events = POLLIN};
            CHECK(poll(&one, 1, 100) >= 0);
            continue;
        }
        CHECK(count == sizeof number);
        ++shared->seen[number];
        ++shared->received;
    }
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
    /* What a killed receiver took and did not count is lost: so many at most. */
    long wanted = whole - killed;
    for (int n = 0; n < count; ++n) {
        if ((receivers[n] = fork()) == 0) {
            receive_all(to, shared, wanted, n % 2);
            _exit(0);
        }
        if ((senders[n] = fork()) == 0) {
            send_all(from, port, n, messages, n % 2);
            _exit(0);
        }
    }
    for (int n = 0; n < killed; ++n) {
        CHECK(n < count);
        usleep(3000);
        CHECK(kill(receivers[n], SIGKILL) == 0 && waitpid(receivers[n], NULL, 0) == receivers[n]);
        if ((receivers[n] = fork()) == 0) {
            receive_all(to, shared, wanted, n % 2);
            _exit(0);
        }
    }
    for (int n = 0; n < count; ++n)
        succeeded(senders[n]), succeeded(receivers[n]);
    long lost = 0, twice = 0;
    for (long n = 0; n < whole; ++n)
        lost += !shared->seen[n], twice += shared->seen[n] > 1;
    printf("%ld messages, %ld lost, %ld twice\n", whole, lost, twice);
    CHECK(lost <= killed && twice == 0);
    return 0;
}
