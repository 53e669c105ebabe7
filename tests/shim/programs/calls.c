/* Make the calls that are asked for, one a line: a name of CALLS and up to six arguments.
 *
 *     12         a number
 *     <0a0b      bytes for the call to read, in hexadecimal; `<12*` are twelve zeros
 *     >0a0b      bytes for the call to change; `>12*` are twelve zeros
 *     <<A,B,C    a msghdr to send: name, control, and bytes of an iovec each, in hexadecimal
 *     >>1,2,3    a msghdr to receive into: bytes of room for name, control and each iovec
 *
 * Each is answered by what was returned, errno, and the bytes of each argument that the call could
 * change: of a msghdr name, control, flags and bytes. Of long ones the first SHOWN are told.
 * SIGALRM interrupts calls and does nothing else. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ARGUMENTS = 6, PARTS = 8, SHOWN = 4096 };

typedef long (*function)(long, long, long, long, long, long);
typedef long (*variadic)(long, long, ...);

struct argument {
    long value; /* as the call takes it */
    char *bytes; /* that the call may change */
    size_t length;
    struct msghdr message;
    struct iovec parts[PARTS];
    int is_received;
};

static const struct {
    const char *name;
    void *address;
} CALLS[] = {
    {"socket", socket}, {"socketpair", socketpair}, {"bind", bind}, {"connect", connect},
    {"getsockname", getsockname}, {"getpeername", getpeername}, {"listen", listen}, {"accept", accept},
    {"shutdown", shutdown}, {"getsockopt", getsockopt}, {"setsockopt", setsockopt}, {"ioctl", ioctl},
    {"send", send}, {"sendto", sendto}, {"sendmsg", sendmsg}, {"write", write}, {"recv", recv},
    {"recvfrom", recvfrom}, {"recvmsg", recvmsg}, {"read", read}, {"poll", poll}, {"select", select},
    {"epoll_create1", epoll_create1}, {"epoll_ctl", epoll_ctl}, {"epoll_wait", epoll_wait},
    {"close", close}, {"ualarm", ualarm}, {NULL, NULL},
};

static void on_alarm(int signal)
{
    (void)signal;
}

static void *room(size_t length)
{
    void *found = calloc(1, length + 1);
    if (!found)
        exit(3);
    return found;
}

/* Bytes of a text up to its end or a comma: in hexadecimal, or a count and `*`. */
static char *bytes_of(char **text, size_t *length)
{
    size_t count = strcspn(*text, ",");
    char *end = *text + count;
    if (count && end[-1] == '*') {
        *length = strtoul(*text, NULL, 10);
        *text = end;
        return room(*length);
    }
    char *found = room(*length = count / 2);
    for (size_t n = 0; n < *length; ++n, *text += 2)
        if (sscanf(*text, "%2hhx", (unsigned char *)&found[n]) != 1)
            exit(4);
    *text = end;
    return found;
}

/* The next part of a msghdr: its bytes, or room for as many as the text says. */
static char *part_of(char **text, size_t *length, int is_received)
{
    if (!is_received)
        return bytes_of(text, length);
    return room(*length = strtoul(*text, text, 10));
}

static void read_message(struct argument *one, char *text)
{
    struct msghdr *message = &one->message;
    size_t name_bytes;
    message->msg_name = part_of(&text, &name_bytes, one->is_received);
    message->msg_namelen = (socklen_t)name_bytes;
    if (!name_bytes)
        message->msg_name = NULL;
    if (*text++ != ',')
        exit(5);
    size_t control_bytes;
    message->msg_control = part_of(&text, &control_bytes, one->is_received);
    message->msg_controllen = control_bytes;
    message->msg_iov = one->parts;
    while (*text == ',') {
        struct iovec *part = &one->parts[message->msg_iovlen];
        if ((size_t)++message->msg_iovlen > PARTS)
            exit(6);
        ++text;
        part->iov_base = part_of(&text, &part->iov_len, one->is_received);
    }
    one->value = (long)message;
}

static void read_argument(struct argument *one, char *text)
{
    memset(one, 0, sizeof *one);
    if (strncmp(text, "<<", 2) == 0 || strncmp(text, ">>", 2) == 0) {
        one->is_received = *text == '>';
        read_message(one, text + 2);
    } else if (*text == '<' || *text == '>') {
        int is_told = *text++ == '>';
        char *bytes = bytes_of(&text, &one->length);
        one->value = (long)bytes;
        one->bytes = is_told ? bytes : NULL;
    } else {
        one->value = strtol(text, NULL, 0);
    }
}

static void show(const char *bytes, size_t length)
{
    putchar('b');
    for (size_t n = 0; n < length && n < SHOWN; ++n)
        printf("%02x", (unsigned char)bytes[n]);
}

static void answer(const struct argument *one)
{
    if (one->bytes) {
        putchar(' ');
        show(one->bytes, one->length);
    }
    if (!one->is_received)
        return;
    const struct msghdr *message = &one->message;
    putchar(' ');
    show(message->msg_name, message->msg_name ? message->msg_namelen : 0);
    putchar(' ');
    show(message->msg_control, message->msg_controllen);
    printf(" %d", message->msg_flags);
    for (size_t n = 0; n < (size_t)message->msg_iovlen; ++n) {
        putchar(' ');
        show(message->msg_iov[n].iov_base, message->msg_iov[n].iov_len);
    }
}

static void release(struct argument *one)
{
    if (one->message.msg_iov) {
        free(one->message.msg_name), free(one->message.msg_control);
        for (int n = 0; n < PARTS; ++n)
            free(one->parts[n].iov_base);
    } else if (one->length || one->bytes) {
        free((void *)one->value);
    }
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    char *line = NULL;
    size_t room_bytes = 0;
    while (getline(&line, &room_bytes, stdin) > 0) {
        struct argument given[ARGUMENTS];
        long values[ARGUMENTS] = {0};
        int count = 0, at = 0;
        char *name = strtok(line, " \n"), *text;
        if (!name)
            return 7;
        while ((text = strtok(NULL, " \n")) != NULL) {
            if (count == ARGUMENTS)
                return 8;
            read_argument(&given[count], text);
            values[count] = given[count].value;
            ++count;
        }
        while (CALLS[at].name && strcmp(CALLS[at].name, name) != 0)
            ++at;
        if (!CALLS[at].name)
            return 9;
        errno = 0;
        long returned;
        if (CALLS[at].address == (void *)ioctl)
            returned = (int)((variadic)CALLS[at].address)(values[0], values[1], values[2]);
        else
            returned = ((function)CALLS[at].address)(values[0], values[1], values[2], values[3], values[4], values[5]);
        int number = errno;
        /* An int comes with whatever is above it. */
        if ((int)returned == -1)
            returned = -1;
        printf("%ld %d", returned, returned == -1 ? number : 0);
        for (int n = 0; n < count; ++n) {
            answer(&given[n]);
            release(&given[n]);
        }
        putchar('\n');
        fflush(stdout);
    }
    free(line);
    return 0;
}
