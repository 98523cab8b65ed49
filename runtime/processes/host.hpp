/// What a process knows of its host.
#pragma once

#include "troupe/core/error.hpp"

#include <cstdint>
#include <string>

namespace troupe {

/// "pid 41 on host7"
std::string process_name();

/// Whether a name or address means this host alone: "localhost", 127.…, ::1.
bool is_loopback(const std::string& host);

/// The address of this host from which it reaches another one. Sends nothing. Errors: network, if
/// the name is not known or there is no way.
Result<std::string> address_towards(const std::string& host, std::uint16_t port);

}  // namespace troupe
