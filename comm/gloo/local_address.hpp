/// Whether this host has an address or an interface: asked before Gloo is, which leaks memory when
/// it has to refuse.
#pragma once

#include <string>

namespace troupe {

/// `address`: a name or a number. Blocks while a name is resolved.
bool is_local_address(const std::string& address);
bool is_local_interface(const std::string& name);

}  // namespace troupe
