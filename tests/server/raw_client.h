// A client that speaks bytes, so that tests can say what no HTTP library would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace tensorfold {

/// One connection to 127.0.0.1. Reads wait up to 20 seconds, which no passing test comes near.
class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { close_now(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t size = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (size <= 0) return;  // the server may close while a refused body is still being sent
      bytes.remove_prefix(static_cast<size_t>(size));
    }
  }

  /// Everything up to and with `end`; what follows is kept for the next read. Short when the connection ends
  /// before.
  std::string read_until(std::string_view end) {
    for (;;) {
      if (const size_t at = input_.find(end); at != std::string::npos) return take(at + end.size());
      if (!read_more()) return take(input_.size());
    }
  }

  std::string read_bytes(size_t size) {
    while (input_.size() < size && read_more()) {
    }
    return take(std::min(size, input_.size()));
  }

  /// A reply with Content-Length: head and body.
  std::string read_reply() {
    const std::string head = read_until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    return at == std::string::npos ? head : head + read_bytes(std::stoul(head.substr(at + 16)));
  }

  /// Everything until the server closes.
  std::string read_to_end() {
    while (read_more()) {
    }
    return take(input_.size());
  }

  bool is_open() {
    char byte;
    pollfd poll_fd{fd_, POLLIN, 0};
    return poll(&poll_fd, 1, 0) == 0 || recv(fd_, &byte, 1, MSG_PEEK) > 0;
  }

  void close_now() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  bool read_more() {
    pollfd poll_fd{fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, 20000) <= 0) {
      ADD_FAILURE() << "nothing came within 20 s; so far: " << input_;
      return false;
    }
    char buffer[4096];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    input_.append(buffer, static_cast<size_t>(size));
    return true;
  }

  std::string take(size_t size) {
    std::string out = input_.substr(0, size);
    input_.erase(0, size);
    return out;
  }

  int fd_;
  std::string input_;
};

}  // namespace tensorfold
