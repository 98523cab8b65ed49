#include "host.hpp"

#include <cerrno>
#include <exception>
#include <fcntl.h>
#include <sched.h>
#include <system_error>
#include <thread>
#include <unistd.h>

namespace troupe::bench {

namespace {

void enter(const std::string& network_namespace) {
  const std::string path = "/run/netns/" + network_namespace;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  const int entered = setns(descriptor, CLONE_NEWNET);
  const int error = errno;
  close(descriptor);
  if (entered != 0) {
    throw std::system_error(error, std::generic_category(), "setns " + path);
  }
}

}  // namespace

Host Host::parse(const std::string& text) {
  const std::size_t at = text.find('@');
  return {.address = text.substr(0, at),
          .network_namespace = at == std::string::npos ? "" : text.substr(at + 1)};
}

void Host::run(const std::function<void()>& body) const {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      if (!network_namespace.empty()) {
        enter(network_namespace);
      }
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

}  // namespace troupe::bench
