/*
 * Sockets of RDS (Reliable Datagram Sockets) in user space, for programs in C.
 *
 * Each function is POSIX's with urds_ before its name: the same arguments, the same results, errno as
 * Linux's RDS sets it. A descriptor that is no socket of urds goes to libc, so a program may use these
 * for all its descriptors. Poll, select, epoll, fcntl, dup and fork need no other name: the descriptor is
 * an ordinary one. Close it with close or urds_close.
 *
 *     int fd = urds_socket(AF_RDS, SOCK_SEQPACKET, 0);
 *
 * asks the node (`urds node`) at the path in URDS_NODE, else at /run/urds/node.sock, else the user's;
 * without a node it fails with EAFNOSUPPORT. A program that is started by `urds run` needs none of
 * this header: socket, bind and so on do the same there.
 *
 * Link with -lurds, or with liburds.a. All functions may be called from any thread, from a child after
 * fork, and from a signal handler, where a call that interrupted the same call gets EAGAIN.
 */
#ifndef URDS_H
#define URDS_H

#include <sys/types.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef AF_RDS
#define AF_RDS 21
#endif
#ifndef PF_RDS
#define PF_RDS AF_RDS
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

/* Of <sys/socket.h> with _GNU_SOURCE; named here, so that the header needs none. */
struct mmsghdr;

int urds_socket(int domain, int type, int protocol);
int urds_bind(int fd, const struct sockaddr *address, socklen_t length);
int urds_connect(int fd, const struct sockaddr *address, socklen_t length);
int urds_getsockname(int fd, struct sockaddr *address, socklen_t *length);
int urds_getpeername(int fd, struct sockaddr *address, socklen_t *length);

ssize_t urds_send(int fd, const void *bytes, size_t count, int flags);
ssize_t urds_sendto(int fd, const void *bytes, size_t count, int flags,
                    const struct sockaddr *address, socklen_t length);
ssize_t urds_sendmsg(int fd, const struct msghdr *message, int flags);
int urds_sendmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags);
ssize_t urds_write(int fd, const void *bytes, size_t count);
ssize_t urds_writev(int fd, const struct iovec *parts, int count);

ssize_t urds_recv(int fd, void *bytes, size_t count, int flags);
ssize_t urds_recvfrom(int fd, void *bytes, size_t count, int flags, struct sockaddr *address,
                      socklen_t *length);
ssize_t urds_recvmsg(int fd, struct msghdr *message, int flags);
int urds_recvmmsg(int fd, struct mmsghdr *messages, unsigned int count, int flags,
                  struct timespec *timeout);
ssize_t urds_read(int fd, void *bytes, size_t count);
ssize_t urds_readv(int fd, const struct iovec *parts, int count);

int urds_getsockopt(int fd, int level, int option, void *value, socklen_t *length);
int urds_setsockopt(int fd, int level, int option, const void *value, socklen_t length);
/* The third argument is an integer or a pointer, as the request asks. */
int urds_ioctl(int fd, unsigned long request, void *argument);
int urds_close(int fd);

#ifdef __cplusplus
}
#endif

#endif
