/* What is the least that a server costs: one thread with epoll that answers each request with the same bytes?
 *
 *     cc -O2 -o epoll epoll.c
 *     epoll http|grpc PORT|SOCKET ANSWER TENSOR_BYTES COUNTER
 *
 * ANSWER is a file. Of HTTP it has the whole answer, head and body, and of gRPC the message alone, which is framed here. With TENSOR_BYTES
 * that many bytes are copied from the end of each HTTP request to the end of the answer, as the model `identity` would. COUNTER is a file of eight bytes
 * that has the number of answers so far.
 *
 * Requests are read into memory that the connection keeps, so it is warm after the first one. Nothing is checked: an HTTP request is
 * a head with a length and a body, and a gRPC request ends with the flag END_STREAM. Writes block, which suits clients that read each answer.
 */

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 65536, EVENTS_MAX = 64, FIRST_BYTES = 64 << 10 };
enum { FRAME_HEAD = 9, DATA = 0, HEADERS = 1, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8, END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
static const uint32_t WINDOW_MAX = 0x7fffffff, WINDOW_FIRST = 65535, REOPEN_BYTES = 1 << 30;

struct connection {
  char* buffer;
  size_t room, have;
  bool is_open; /* gRPC: the preface has been read. */
  uint32_t received;
};

static struct connection connections[CONNECTIONS_MAX];
static char* answer;
static size_t answer_bytes, tensor_bytes;
static volatile uint64_t* count;

static void check(bool good, const char* what)
{
  if (!good) {
    perror(what);
    exit(1);
  }
}

/* False if the client has gone. */
static bool send_all(int fd, const char* from, size_t bytes)
{
  while (bytes > 0) {
    const ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    from += sent;
    bytes -= (size_t)sent;
  }
  return true;
}

static void drop_first(struct connection* on, size_t bytes)
{
  on->have -= bytes;
  memmove(on->buffer, on->buffer + bytes, on->have);
}

static void make_room(struct connection* on, size_t bytes)
{
  if (on->room < bytes) {
    on->room = bytes;
    on->buffer = realloc(on->buffer, bytes);
    check(on->buffer != NULL, "memory");
  }
}

/* The bytes of the first request, or 0 while its head is not complete. */
static size_t http_request_bytes(const struct connection* on)
{
  const char* end = memmem(on->buffer, on->have, "\r\n\r\n", 4);
  if (end == NULL) {
    return 0;
  }
  size_t body = 0;
  for (const char* line = on->buffer; line < end; line = (const char*)memchr(line, '\n', (size_t)(end + 2 - line)) + 1) {
    if (strncasecmp(line, "content-length:", 15) == 0) {
      body = strtoul(line + 15, NULL, 10);
    }
  }
  return (size_t)(end + 4 - on->buffer) + body;
}

static bool answer_http(int fd, struct connection* on)
{
  size_t request;
  while ((request = http_request_bytes(on)) > 0) {
    make_room(on, request);
    if (on->have < request) {
      return true;
    }
    if (tensor_bytes > 0 && request > tensor_bytes) {
      memcpy(answer + answer_bytes - tensor_bytes, on->buffer + request - tensor_bytes, tensor_bytes);
    }
    if (!send_all(fd, answer, answer_bytes)) {
      return false;
    }
    ++*count;
    drop_first(on, request);
  }
  return true;
}

static char* frame_head(char* at, size_t bytes, int kind, int flags, uint32_t stream)
{
  const uint32_t number = htonl(stream);
  const char head[] = {(char)(bytes >> 16), (char)(bytes >> 8), (char)bytes, (char)kind, (char)flags};
  memcpy(at, head, sizeof head);
  memcpy(at + sizeof head, &number, sizeof number);
  return at + FRAME_HEAD;
}

static bool send_window(int fd, uint32_t more)
{
  char update[FRAME_HEAD + 4];
  const uint32_t number = htonl(more);
  memcpy(frame_head(update, 4, WINDOW_UPDATE, 0, 0), &number, 4);
  return send_all(fd, update, sizeof update);
}

/* Headers, the message with its length before it, and trailers, in one call. */
static bool answer_stream(int fd, uint32_t stream)
{
  /* Status 200 by its index in the static table. The others are literals, which no table keeps. */
  static const char head[] = "\x88\x0f\x10\x10" "application/grpc", tail[] = "\x00\x0bgrpc-status\x01" "0";
  static char* frames = NULL;
  if (frames == NULL) {
    frames = malloc(3 * FRAME_HEAD + sizeof head + sizeof tail + 5 + answer_bytes);
    check(frames != NULL, "memory");
  }
  char* at = frame_head(frames, sizeof head - 1, HEADERS, END_HEADERS, stream);
  at = mempcpy(at, head, sizeof head - 1);
  at = frame_head(at, 5 + answer_bytes, DATA, 0, stream);
  const uint32_t length = htonl((uint32_t)answer_bytes);
  *at++ = 0;
  at = mempcpy(at, &length, sizeof length);
  at = mempcpy(at, answer, answer_bytes);
  at = frame_head(at, sizeof tail - 1, HEADERS, END_HEADERS | END_STREAM, stream);
  at = mempcpy(at, tail, sizeof tail - 1);
  ++*count;
  return send_all(fd, frames, (size_t)(at - frames));
}

static bool handle_frame(int fd, struct connection* on, const char* frame, size_t bytes)
{
  const int kind = frame[3], flags = frame[4];
  uint32_t stream;
  memcpy(&stream, frame + 5, sizeof stream);
  if (kind == SETTINGS && !(flags & ACK)) {
    char reply[FRAME_HEAD];
    frame_head(reply, 0, SETTINGS, ACK, 0);
    return send_all(fd, reply, sizeof reply);
  }
  if (kind == PING && !(flags & ACK)) {
    char reply[FRAME_HEAD + 8];
    memcpy(frame_head(reply, 8, PING, ACK, 0), frame + FRAME_HEAD, 8);
    return send_all(fd, reply, sizeof reply);
  }
  if (kind == DATA && (on->received += (uint32_t)bytes) > REOPEN_BYTES) {
    if (!send_window(fd, on->received)) {
      return false;
    }
    on->received = 0;
  }
  return !((kind == DATA || kind == HEADERS) && (flags & END_STREAM)) || answer_stream(fd, ntohl(stream));
}

static bool answer_grpc(int fd, struct connection* on)
{
  static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  size_t at = 0;
  if (!on->is_open) {
    if (on->have < sizeof preface - 1) {
      return true;
    }
    char settings[FRAME_HEAD];
    frame_head(settings, 0, SETTINGS, 0, 0);
    if (!send_all(fd, settings, sizeof settings) || !send_window(fd, WINDOW_MAX - WINDOW_FIRST)) {
      return false;
    }
    on->is_open = true;
    at = sizeof preface - 1;
  }
  while (on->have - at >= FRAME_HEAD) {
    const unsigned char* frame = (const unsigned char*)on->buffer + at;
    const size_t bytes = (size_t)frame[0] << 16 | (size_t)frame[1] << 8 | frame[2];
    if (on->have - at < FRAME_HEAD + bytes) {
      break;
    }
    if (!handle_frame(fd, on, (const char*)frame, bytes)) {
      return false;
    }
    at += FRAME_HEAD + bytes;
  }
  drop_first(on, at);
  return true;
}

static int listening(const char* address)
{
  const bool is_path = strchr(address, '/') != NULL;
  struct sockaddr_un path = {.sun_family = AF_UNIX};
  struct sockaddr_in port = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const int fd = socket(is_path ? AF_UNIX : AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  snprintf(path.sun_path, sizeof path.sun_path, "%s", address);
  port.sin_port = htons((uint16_t)atoi(address));
  const int bound =
      is_path ? bind(fd, (struct sockaddr*)&path, sizeof path) : bind(fd, (struct sockaddr*)&port, sizeof port);
  check(bound == 0, address);
  check(listen(fd, SOMAXCONN) == 0, "listen");
  return fd;
}

static void take_connection(int epoll, int listener)
{
  const int fd = accept(listener, NULL, NULL), on = 1;
  if (fd < 0 || fd >= CONNECTIONS_MAX) {
    close(fd);
    return;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct connection* made = &connections[fd];
  made->have = 0;
  made->is_open = false;
  made->received = 0;
  make_room(made, FIRST_BYTES);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
}

static void read_answer(const char* path)
{
  FILE* file = fopen(path, "rb");
  check(file != NULL, path);
  struct stat stat;
  check(fstat(fileno(file), &stat) == 0, path);
  answer_bytes = (size_t)stat.st_size;
  answer = malloc(answer_bytes);
  check(answer != NULL && fread(answer, 1, answer_bytes, file) == answer_bytes, path);
  fclose(file);
}

static void open_counter(const char* path)
{
  const int fd = open(path, O_RDWR | O_CREAT, 0600);
  check(fd >= 0 && ftruncate(fd, sizeof *count) == 0, path);
  void* mapped = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  check(mapped != MAP_FAILED, path);
  count = mapped;
}

int main(int argc, char** argv)
{
  if (argc != 6) {
    fprintf(stderr, "usage: epoll http|grpc PORT|SOCKET ANSWER TENSOR_BYTES COUNTER\n");
    return 2;
  }
  const bool is_http = strcmp(argv[1], "http") == 0;
  read_answer(argv[3]);
  tensor_bytes = strtoul(argv[4], NULL, 10);
  open_counter(argv[5]);
  const int listener = listening(argv[2]), epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
  for (;;) {
    const int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
    for (int at = 0; at < ready; at++) {
      const int fd = events[at].data.fd;
      if (fd == listener) {
        take_connection(epoll, listener);
        continue;
      }
      struct connection* on = &connections[fd];
      const ssize_t got = recv(fd, on->buffer + on->have, on->room - on->have, MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        continue;
      }
      on->have += got > 0 ? (size_t)got : 0;
      if (got <= 0 || !(is_http ? answer_http(fd, on) : answer_grpc(fd, on))) {
        close(fd);
      }
    }
  }
}
