/*
 * One message from one socket to another, by the calls of the kernel's RDS.
 *
 *     cc -Wall -o one_message one_message.c
 *     urds run -- ./one_message 127.0.0.1
 *
 * With -DWITH_URDS_H and -lurds the same program needs no `urds run`: see one_message_urds in the
 * Makefile.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef WITH_URDS_H
#include <urds.h>
#define socket urds_socket
#define bind urds_bind
#define getsockname urds_getsockname
#define sendto urds_sendto
#define recvfrom urds_recvfrom
#define close urds_close
#endif

static int failed(const char *call)
{
    perror(call);
    return 1;
}

int main(int argc, char **argv)
{
    struct sockaddr_in name = {.sin_family = AF_INET}, source;
    socklen_t length = sizeof name, source_length = sizeof source;
    char payload[64], text[INET_ADDRSTRLEN];

    if (argc != 2 || inet_pton(AF_INET, argv[1], &name.sin_addr) != 1) {
        fprintf(stderr, "usage: one_message ADDRESS\n");
        return 2;
    }
    int sender = socket(AF_RDS, SOCK_SEQPACKET, 0);
    int receiver = socket(AF_RDS, SOCK_SEQPACKET, 0);
    if (sender < 0 || receiver < 0)
        return failed("socket");
    /* Port 0 chooses a free one; a socket of RDS must be bound before it sends. */
    if (bind(sender, (struct sockaddr *)&name, sizeof name) < 0
        || bind(receiver, (struct sockaddr *)&name, sizeof name) < 0)
        return failed("bind");
    if (getsockname(receiver, (struct sockaddr *)&name, &length) < 0)
        return failed("getsockname");
    if (sendto(sender, "hello", 5, 0, (struct sockaddr *)&name, sizeof name) != 5)
        return failed("sendto");
    ssize_t count = recvfrom(receiver, payload, sizeof payload, 0, (struct sockaddr *)&source,
                             &source_length);
    if (count < 0)
        return failed("recvfrom");
    printf("%.*s from %s\n", (int)count, payload,
           inet_ntop(AF_INET, &source.sin_addr, text, sizeof text));
    close(sender);
    close(receiver);
    return 0;
}
